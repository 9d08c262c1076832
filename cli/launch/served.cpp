#include "cli/launch/served.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "cli/size.h"
#include "include/spillway/stats.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "SPILLWAY_LIVE_LINKS";

// This is of the environment's configuration alone: asking the library would print its warnings twice.
std::string configured(const std::string& name) {
  const char* conf = std::getenv("SPILLWAY_CONF");
  const std::string all = conf == nullptr ? "" : "," + std::string(conf);
  const size_t at = all.rfind("," + name + ":");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 2;
  return all.substr(begin, all.find(',', begin) - begin);
}

uint64_t counted(int64_t value) {
  return value < 0 ? 0 : static_cast<uint64_t>(value);
}

struct Served {
  size_t processes = 0;
  int64_t allocations = 0;
  uint64_t bytes = 0;
  int64_t ooms = 0;
  const LiveReading* highest = nullptr;  // of which this row has the highest reserved peak
  const spw_stats* peak = nullptr;
  int64_t device = 0;
};

Served sum_of(const std::vector<LiveReading>& pages) {
  Served out;
  for (const LiveReading& page : pages) {
    if (!page.devices.empty()) ++out.processes;
    for (const LiveRow& row : page.devices) {
      const spw_stats& stats = row.now.stats;
      out.allocations += stats.allocation.all.allocated;
      out.bytes += counted(stats.requested_bytes.all.allocated);
      out.ooms += stats.num_ooms;
      if (out.peak != nullptr && stats.reserved_bytes.all.peak <= out.peak->reserved_bytes.all.peak) continue;
      out.highest = &page;
      out.peak = &stats;
      out.device = row.now.ordinal;
    }
  }
  return out;
}

}  // namespace

ServedPages::ServedPages() {
  ::unsetenv(kVariable);
  if (configured("live") == "off") return;
  for (const std::string& parent : live_folders(configured("live_dir"))) {
    std::string folder = parent + "/spillway-run-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) continue;
    folder_ = folder;
    ::setenv(kVariable, folder_.c_str(), 1);
    return;
  }
}

ServedPages::~ServedPages() {
  std::error_code ignored;
  if (is_watching()) fs::remove_all(folder_, ignored);
}

std::vector<LiveReading> ServedPages::read() const {
  std::vector<LiveReading> out;
  std::error_code error;
  if (!is_watching()) return out;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    Result<LiveReading> page = read_live_page(entry.path().string());
    if (page.ok()) out.push_back(std::move(page.value()));
  }
  return out;
}

std::string served_line(const std::vector<LiveReading>& pages) {
  const Served served = sum_of(pages);
  if (served.peak == nullptr) return "";
  const bool is_one = served.processes == 1;
  const std::string who = is_one ? served.highest->program : fmt::format("{} processes", served.processes);
  const std::string where =
      is_one ? "" : fmt::format(" (rank {}, device {})", served.highest->rank, served.device);
  return fmt::format("{}: {} allocations served, {} in all; peak {} allocated in {} reserved{}{}", who,
                     grouped(counted(served.allocations)), format_size(served.bytes),
                     format_size(counted(served.peak->allocated_bytes.all.peak)),
                     format_size(counted(served.peak->reserved_bytes.all.peak)), where,
                     served.ooms > 0 ? fmt::format("; {} out of memory", served.ooms) : "");
}

}  // namespace spillway
