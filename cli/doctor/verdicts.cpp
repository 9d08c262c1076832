#include "cli/doctor/verdicts.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <vector>

#include "stats/whole_file.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Another user could have made the last one.
struct Folder {
  fs::path path;
  bool must_be_own = false;
};

std::vector<Folder> folders() {
  if (const std::string named = variable("SPILLWAY_CACHE"); !named.empty()) return {{named}};
  std::vector<Folder> found;
  if (const std::string caches = variable("XDG_CACHE_HOME"); !caches.empty()) {
    found.push_back({fs::path(caches) / "spillway"});
  } else if (const std::string home = variable("HOME"); !home.empty()) {
    found.push_back({fs::path(home) / ".cache" / "spillway"});
  }
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (!error) found.push_back({temporary / fmt::format("spillway-{}", getuid()), true});
  return found;
}

bool is_own(const fs::path& folder) {
  struct stat found {};
  return lstat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == getuid() &&
         (found.st_mode & 022) == 0;
}

bool make(const Folder& folder) {
  std::error_code error;
  fs::create_directories(folder.path.parent_path(), error);
  (void)mkdir(folder.path.c_str(), 0700);
  return fs::is_directory(folder.path, error) && (!folder.must_be_own || is_own(folder.path));
}

Json read(const fs::path& file) {
  Json kept = Json::parse(std::ifstream(file), nullptr, false);
  const bool is_sound =
      kept.is_object() && kept.value("schema_version", Json()) == Json(1) && kept["drivers"].is_object();
  return is_sound ? kept : Json{{"schema_version", 1}, {"drivers", Json::object()}};
}

std::string kernel_version() {
  std::string line;
  std::getline(std::ifstream("/proc/driver/nvidia/version"), line);
  std::smatch found;
  static const std::regex kVersion(R"(\b\d+\.\d+(\.\d+)?\b)");
  return std::regex_search(line, found, kVersion) ? found.str() : "";
}

}  // namespace

std::string driver_name(const Driver& driver) {
  const std::string kernel = variable("SPILLWAY_LIBCUDA").empty() ? kernel_version() : "";
  return fmt::format("{}{}CUDA {}.{}", kernel, kernel.empty() ? "" : ", ", driver.version() / 1000,
                     driver.version() % 1000 / 10);
}

Result<std::string> keep_verdict(const std::string& driver, const std::string& device,
                                 const std::string& profile) {
  Status refusal = Status::io("no folder to keep the verdict in; set SPILLWAY_CACHE to one");
  for (const Folder& folder : folders()) {
    if (!make(folder)) continue;
    const fs::path file = folder.path / "driver-profiles.json";
    Json kept = read(file);
    Json& devices = kept["drivers"][driver];
    if (!devices.is_object()) devices = Json::object();
    devices[device] = profile;
    const std::string text = kept.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
    refusal = write_whole_file(file.string(), text);
    if (refusal.ok()) return file.string();
  }
  return refusal;
}

}  // namespace spillway
