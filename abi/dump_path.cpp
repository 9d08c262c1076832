#include "abi/dump_path.h"

#include <fmt/format.h>
#include <unistd.h>

#include "stats/dump.h"

namespace spillway {
namespace {

constexpr std::string_view kLetters = "prdt%";

std::string value_of(char letter, int device, int64_t time_seconds) {
  switch (letter) {
    case 'p':
      return fmt::format("{}", getpid());
    case 'r':
      return fmt::format("{}", process_rank());
    case 'd':
      return fmt::format("{}", device);
    case 't':
      return fmt::format("{}", time_seconds);
    default:
      return "%";
  }
}

// Finds where the last component's ending begins, its dot included; the end where it has none.
size_t ending_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  const size_t first = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos || dot <= first ? path.size() : dot;
}

}  // namespace

DumpFormat format_of(std::string_view path) {
  if (path.ends_with(".prom")) return DumpFormat::kPrometheus;
  return path.ends_with(".pickle") ? DumpFormat::kSnapshot : DumpFormat::kJson;
}

Result<DumpFormat> format_named(std::string_view name) {
  if (name == "json") return DumpFormat::kJson;
  if (name == "prometheus") return DumpFormat::kPrometheus;
  if (name == "pickle") return DumpFormat::kSnapshot;
  return Status::invalid_argument(
      fmt::format("format '{}' is not known; allowed: json, prometheus, pickle", name));
}

Status check_dump_path(std::string_view path) {
  if (path.empty()) return Status::invalid_argument("the path is empty");
  if (path.back() == '/')
    return Status::invalid_argument(fmt::format("'{}' names a folder, not a file", path));
  for (size_t at = path.find('%'); at != std::string_view::npos; at = path.find('%', at + 2)) {
    if (at + 1 < path.size() && kLetters.find(path[at + 1]) != std::string_view::npos) continue;
    return Status::invalid_argument(fmt::format(
        "'{}' in '{}' means nothing; allowed: %p (process), %r (rank), %d (device), %t (time), %%",
        path.substr(at, 2), path));
  }
  return {};
}

std::string expand_dump_path(std::string_view path, int device, int64_t time_seconds) {
  std::string out;
  for (size_t at = 0; at < path.size(); ++at) {
    if (path[at] == '%' && at + 1 < path.size()) {
      out += value_of(path[++at], device, time_seconds);
    } else {
      out += path[at];
    }
  }
  return out;
}

bool is_per_device(std::string_view path) {
  return expand_dump_path(path, 0, 0) != expand_dump_path(path, 1, 0);
}

std::string with_word(std::string_view path, std::string_view word) {
  const size_t ending = ending_of(path);
  return fmt::format("{}.{}{}", path.substr(0, ending), word, path.substr(ending));
}

}  // namespace spillway
