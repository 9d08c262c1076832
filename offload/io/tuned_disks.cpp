#include "offload/io/tuned_disks.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include "stats/whole_file.h"

namespace spillway {
namespace {

using Json = nlohmann::json;

constexpr int kSchemaVersion = 1;
// These are what the options spill_block and spill_depth allow.
constexpr uint64_t kLeastBlockBytes = 64 << 10;
constexpr uint64_t kMostBlockBytes = 16 << 20;
constexpr uint64_t kMostDepth = 4096;

std::string usual_path() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    // The specification of these directories: a path that is not absolute does not count.
    return value != nullptr && *value == '/' ? std::string(value) : std::string();
  };
  std::string folder = variable("XDG_CACHE_HOME");
  if (folder.empty()) {
    const std::string home = variable("HOME");
    if (home.empty()) return {};
    folder = home + "/.cache";
  }
  return folder + "/spillway/disks.json";
}

// Empty where there is no such directory.
std::string disk_of(const std::string& directory) {
  struct stat found {};
  if (::stat(directory.c_str(), &found) != 0) return {};
  return fmt::format("{}:{}", major(found.st_dev), minor(found.st_dev));
}

// An object with the disks of a sound file; else an empty one.
Json read(const std::string& path) {
  std::ifstream file(path);
  Json all = Json::parse(file, nullptr, false);
  const bool is_sound = all.is_object() && all.contains("schema_version") &&
                        all["schema_version"] == kSchemaVersion && all.contains("disks") &&
                        all["disks"].is_object();
  return is_sound ? all["disks"] : Json::object();
}

std::optional<uint64_t> number(const Json& entry, const char* name, uint64_t least, uint64_t most) {
  if (!entry.is_object() || !entry.contains(name) || !entry[name].is_number_unsigned()) return std::nullopt;
  const auto value = entry[name].get<uint64_t>();
  if (value < least || value > most) return std::nullopt;
  return value;
}

}  // namespace

TunedDisks::TunedDisks() : path_(usual_path()) {}

std::optional<IoOptions> TunedDisks::find(const std::string& directory, const IoOptions& options,
                                          bool is_direct) const {
  const std::string disk = disk_of(directory);
  if (path_.empty() || disk.empty()) return std::nullopt;
  const Json disks = read(path_);
  if (!disks.contains(disk)) return std::nullopt;
  const Json& entry = disks[disk];
  const std::optional<uint64_t> block = number(entry, "block_bytes", kLeastBlockBytes, kMostBlockBytes);
  const std::optional<uint64_t> depth = number(entry, "depth", 1, kMostDepth);
  if (!block.has_value() || !depth.has_value() || entry.value("direct", Json()) != is_direct)
    return std::nullopt;
  IoOptions found = options;
  found.block_bytes = *block;
  found.depth = static_cast<uint32_t>(*depth);
  return found;
}

Status TunedDisks::keep(const std::string& directory, const IoOptions& options, bool is_direct) const {
  if (path_.empty())
    return Status::io("no place to keep what was found: neither XDG_CACHE_HOME nor HOME is set");
  const std::string disk = disk_of(directory);
  if (disk.empty()) return Status::io(fmt::format("{}: {}", directory, std::strerror(errno)));
  Json disks = read(path_);
  disks[disk] = {{"block_bytes", options.block_bytes}, {"depth", options.depth}, {"direct", is_direct}};
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  if (error) return Status::io(fmt::format("{}: {}", path_, error.message()));
  const Json all{{"schema_version", kSchemaVersion}, {"disks", std::move(disks)}};
  return write_whole_file(path_, all.dump(2) + "\n");
}

}  // namespace spillway
