#include "estimator/calibration/catalog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

namespace spillway::estimator {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;
// The names of Group in the file.
constexpr std::array<const char*, kGroups> kNames = {"weights", "optimizer", "gradients", "fixed",
                                                     "transient"};

Json to_json(const GroupBytes& groups, double peak) {
  Json out = Json::object();
  for (size_t i = 0; i < kGroups; ++i) {
    if (groups[i]) out[kNames[i]] = std::llround(*groups[i]);
  }
  out["peak"] = std::llround(peak);
  return out;
}

// Reads members and keeps the first complaint.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  std::string text(const char* name) {
    const auto found = object_.find(name);
    if (found != object_.end() && found->is_string()) return found->get<std::string>();
    complain(name, "a text");
    return {};
  }
  int64_t whole(const char* name) {
    const auto found = object_.find(name);
    if (found != object_.end() && found->is_number_integer()) return found->get<int64_t>();
    complain(name, "a whole number");
    return 0;
  }
  GroupBytes groups(const char* name, double* peak) {
    GroupBytes out;
    const auto found = object_.find(name);
    if (found == object_.end() || !found->is_object() || !positive(*found, "peak")) {
      complain(name, "bytes by group, with the peak");
      return out;
    }
    *peak = (*found)["peak"].get<double>();
    for (size_t i = 0; i < kGroups; ++i) {
      if (!found->contains(kNames[i])) continue;
      if (!positive(*found, kNames[i]))
        complain(name, "bytes above 0");
      else
        out[i] = (*found)[kNames[i]].get<double>();
    }
    return out;
  }
  const std::string& complaint() const { return complaint_; }

 private:
  static bool positive(const Json& object, const char* name) {
    return object.contains(name) && object[name].is_number() && object[name].get<double>() > 0;
  }
  void complain(const char* name, const char* allowed) {
    if (complaint_.empty()) complaint_ = fmt::format("{}: missing or wrong; allowed: {}", name, allowed);
  }

  const Json& object_;
  std::string complaint_;
};

Result<CatalogLine> parse_line(const std::string& text) {
  const Json object = Json::parse(text, nullptr, false);
  if (!object.is_object()) return Status::invalid_argument("not a JSON object");
  Reader in(object);
  if (in.whole("schema_version") != kSchemaVersion)
    return Status::invalid_argument(fmt::format("schema_version: allowed: {}", kSchemaVersion));
  CatalogLine out;
  out.key = in.text("key");
  out.signature = {in.text("hardware"), in.text("model"),   in.text("parallel"),
                   in.text("states"),   in.text("kernels"), in.text("shape")};
  out.source = in.text("source");
  out.rank = in.whole("rank");
  out.time_seconds = in.whole("time_seconds");
  Observation& seen = out.observation;
  seen.kernels = out.signature.kernels;
  seen.shape = out.signature.shape;
  seen.phase = in.text("phase");
  seen.predicted = in.groups("predicted", &seen.predicted_peak);
  seen.measured = in.groups("measured", &seen.measured_peak);
  if (!in.complaint().empty()) return Status::invalid_argument(in.complaint());
  return out;
}

// Tells whether the file's last line lacks its end.
bool cut_off(int fd, off_t size) {
  char last = '\n';
  return size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

Status write_locked(int fd, const std::string& path, const std::string& lines) {
  const auto failed = [&] {
    return Status::io(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  };
  if (flock(fd, LOCK_EX) != 0) return failed();
  const off_t size = lseek(fd, 0, SEEK_END);
  if (size < 0) return failed();
  std::string text(cut_off(fd, size) ? "\n" : "");
  text += lines;
  ssize_t done = 0;
  do done = write(fd, text.data(), text.size());
  while (done < 0 && errno == EINTR);
  if (done == static_cast<ssize_t>(text.size())) return {};
  if (done >= 0) errno = ENOSPC;
  Status status = failed();
  if (ftruncate(fd, size) != 0) return Status::io(status.text() + ", and holds a part of a line");
  return status;
}

}  // namespace

std::string to_text(const CatalogLine& line) {
  const Observation& seen = line.observation;
  const Json out = {{"schema_version", kSchemaVersion},
                    {"key", line.key},
                    {"estimator", kFormulaVersion},
                    {"hardware", line.signature.hardware},
                    {"model", line.signature.model},
                    {"parallel", line.signature.parallel},
                    {"states", line.signature.states},
                    {"kernels", line.signature.kernels},
                    {"shape", line.signature.shape},
                    {"source", line.source},
                    {"rank", line.rank},
                    {"time_seconds", line.time_seconds},
                    {"phase", seen.phase},
                    {"predicted", to_json(seen.predicted, seen.predicted_peak)},
                    {"measured", to_json(seen.measured, seen.measured_peak)}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<std::string> Catalog::hardware_for(const TrainingRun& run) const {
  std::vector<std::string> out;
  for (const CatalogLine& line : lines) {
    const std::string& name = line.signature.hardware;
    if (std::find(out.begin(), out.end(), name) == out.end() && line.key == signature_of(run, name).key())
      out.push_back(name);
  }
  return out;
}

std::vector<Observation> Catalog::observations(const std::string& key) const {
  std::vector<Observation> out;
  for (const CatalogLine& line : lines) {
    if (line.key == key) out.push_back(line.observation);
  }
  return out;
}

Catalog read_catalog(const std::string& text) {
  Catalog out;
  std::istringstream lines(text);
  std::string line;
  size_t damaged = 0;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    Result<CatalogLine> read = parse_line(line);
    if (read.ok()) {
      out.lines.push_back(std::move(read.value()));
    } else if (++damaged == 1) {
      out.damaged = fmt::format("line {} is damaged and skipped: {}", number, read.status().text());
    }
  }
  if (damaged > 1) out.damaged += fmt::format(" (and {} more)", damaged - 1);
  return out;
}

Status append_to_catalog(const std::string& path, const std::vector<CatalogLine>& lines) {
  std::string text;
  for (const CatalogLine& line : lines) text += to_text(line);
  const int fd = open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return Status::io(fmt::format("{}: {}", path, std::strerror(errno)));
  Status status = write_locked(fd, path, text);
  if (close(fd) != 0 && status.ok())
    return Status::io(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  return status;
}

}  // namespace spillway::estimator
