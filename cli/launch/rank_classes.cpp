#include "cli/launch/rank_classes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

namespace spillway {
namespace {

using Parsed = nlohmann::json;

constexpr uint64_t kNear = uint64_t{2} << 20;
constexpr const char* kPeaks[] = {"peak_allocated_bytes", "peak_reserved_bytes"};

uint64_t bytes(const Parsed& device, const char* member) {
  return device.value(member, uint64_t{0});
}

bool agree(const Parsed& most, const Parsed& other) {
  for (const char* peak : kPeaks) {
    const uint64_t a = bytes(most, peak);
    const uint64_t b = bytes(other, peak);
    if (std::max(a, b) - std::min(a, b) > std::max(kNear, a / 1000)) return false;
  }
  return bytes(most, "num_ooms") == bytes(other, "num_ooms");
}

bool is_equal(const Parsed& a, const Parsed& b) {
  return std::all_of(std::begin(kPeaks), std::end(kPeaks),
                     [&](const char* peak) { return bytes(a, peak) == bytes(b, peak); });
}

// "0-7", "511"
std::string ranks_text(const std::vector<std::pair<int, int>>& members) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < members.size();) {
    size_t last = i;
    while (last + 1 < members.size() && members[last + 1].first <= members[last].first + 1) ++last;
    const int first_rank = members[i].first;
    const int last_rank = members[last].first;
    runs.push_back(first_rank == last_rank ? fmt::format("{}", first_rank)
                                           : fmt::format("{}-{}", first_rank, last_rank));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

}  // namespace

std::vector<DryrunClass> classes_of(const std::vector<Parsed>& processes) {
  std::vector<DryrunClass> rows;
  for (const Parsed& process : processes) {
    for (const Parsed& device : process["devices"]) {
      rows.push_back({{{process.value("rank", 0), device.value("device", 0)}}, &process, &device, true});
    }
  }
  // The one with most stands for those that are near it.
  std::stable_sort(rows.begin(), rows.end(), [](const DryrunClass& a, const DryrunClass& b) {
    return bytes(*a.device, kPeaks[0]) > bytes(*b.device, kPeaks[0]);
  });
  std::vector<DryrunClass> classes;
  for (DryrunClass& row : rows) {
    const auto near = std::find_if(classes.begin(), classes.end(),
                                   [&](const DryrunClass& one) { return agree(*one.device, *row.device); });
    if (near == classes.end()) {
      classes.push_back(std::move(row));
    } else {
      near->equal = near->equal && is_equal(*near->device, *row.device);
      near->members.push_back(row.members.front());
    }
  }
  for (DryrunClass& one : classes) std::sort(one.members.begin(), one.members.end());
  std::sort(classes.begin(), classes.end(),
            [](const DryrunClass& a, const DryrunClass& b) { return a.members < b.members; });
  return classes;
}

std::string title_of(const DryrunClass& one) {
  const auto& [rank, device] = one.members.front();
  if (one.members.size() == 1) return fmt::format("rank {} device {}", rank, device);
  // A process may use several devices.
  const bool is_one_rank = one.members.back().first == rank;
  return fmt::format("{} {}, {} devices{}", is_one_rank ? "rank" : "ranks", ranks_text(one.members),
                     one.members.size(), one.equal ? "" : ", at most");
}

Parsed classes_json(const std::vector<DryrunClass>& classes) {
  Parsed out = Parsed::array();
  for (const DryrunClass& one : classes) {
    Parsed members = Parsed::array();
    for (const auto& [rank, device] : one.members) members.push_back({{"rank", rank}, {"device", device}});
    out.push_back({{"members", std::move(members)},
                   {"equal", one.equal},
                   {"peak_allocated_bytes", bytes(*one.device, kPeaks[0])},
                   {"peak_reserved_bytes", bytes(*one.device, kPeaks[1])},
                   {"of_rank", one.process->value("rank", 0)}});
  }
  return out;
}

}  // namespace spillway
