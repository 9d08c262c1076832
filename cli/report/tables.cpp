#include "cli/report/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace spillway {
namespace {

using Holders = std::map<std::string, HolderRow>;

std::string pool_name(const SegmentView& segment) {
  if (segment.pool_first == 0 && segment.pool_second == 0)
    return segment.small ? "default, small" : "default";
  return fmt::format("{}.{}{}", segment.pool_first, segment.pool_second, segment.small ? ", small" : "");
}

void add_holder(Holders& holders, const std::string& name, const SegmentView& segment) {
  HolderRow& row = holders[name];
  row.name = name;
  ++row.segments;
  row.reserved_bytes += segment.bytes;
  uint64_t run = 0;
  for (const BlockView& block : segment.blocks) {
    const bool free = block.state == BlockState::kInactive;
    if (!free) row.active_bytes += block.bytes;
    run = free ? run + block.bytes : 0;
    row.largest_free_bytes = std::max(row.largest_free_bytes, run);
  }
}

std::vector<HolderRow> sorted(const Holders& holders) {
  std::vector<HolderRow> out;
  for (const auto& [name, row] : holders) out.push_back(row);
  std::stable_sort(out.begin(), out.end(), [](const HolderRow& a, const HolderRow& b) {
    return a.reserved_bytes > b.reserved_bytes;
  });
  return out;
}

}  // namespace

uint64_t size_class_bytes(uint64_t requested_bytes) {
  return std::bit_ceil(std::max<uint64_t>(512, std::min(requested_bytes, uint64_t{1} << 62)));
}

Tables tables_of(const std::vector<SegmentView>& segments, const std::vector<std::string>& sites) {
  std::map<uint64_t, ClassRow> classes;
  std::vector<SiteRow> by_site(sites.size());
  Holders pools;
  Holders streams;
  for (const SegmentView& segment : segments) {
    add_holder(pools, pool_name(segment), segment);
    add_holder(streams, fmt::format("0x{:x}", segment.stream), segment);
    for (const BlockView& block : segment.blocks) {
      if (block.state == BlockState::kInactive) continue;
      ClassRow& row = classes[size_class_bytes(block.requested_bytes)];
      ++row.blocks;
      row.live_bytes += block.requested_bytes;
      row.rounding_bytes += block.bytes - block.requested_bytes;
      SiteRow& site = by_site[block.site < sites.size() ? block.site : 0];
      ++site.blocks;
      site.live_bytes += block.requested_bytes;
    }
  }
  Tables out;
  for (auto& [up_to, row] : classes) {
    row.up_to_bytes = up_to;
    out.classes.push_back(row);
  }
  std::map<std::string, SiteRow> named;
  for (size_t i = 0; i < sites.size(); ++i) {
    by_site[i].site = sites[i];
    if (by_site[i].blocks > 0) add_sites(named, {by_site[i]});
  }
  out.sites = by_bytes(named);
  out.pools = sorted(pools);
  out.streams = sorted(streams);
  return out;
}

void add_classes(std::map<uint64_t, ClassRow>& to, const std::vector<ClassRow>& rows) {
  for (const ClassRow& row : rows) {
    ClassRow& sum = to[row.up_to_bytes];
    sum.up_to_bytes = row.up_to_bytes;
    sum.blocks += row.blocks;
    sum.live_bytes += row.live_bytes;
    sum.rounding_bytes += row.rounding_bytes;
  }
}

void add_sites(std::map<std::string, SiteRow>& to, const std::vector<SiteRow>& rows) {
  for (const SiteRow& row : rows) {
    SiteRow& sum = to[row.site];
    sum.site = row.site;
    sum.blocks += row.blocks;
    sum.live_bytes += row.live_bytes;
  }
}

std::vector<SiteRow> by_bytes(const std::map<std::string, SiteRow>& sites) {
  std::vector<SiteRow> out;
  for (const auto& [name, row] : sites) out.push_back(row);
  std::stable_sort(out.begin(), out.end(),
                   [](const SiteRow& a, const SiteRow& b) { return a.live_bytes > b.live_bytes; });
  return out;
}

double external_index(uint64_t free_bytes, uint64_t largest_free_bytes) {
  if (free_bytes == 0) return 0;
  return std::clamp(1 - static_cast<double>(largest_free_bytes) / static_cast<double>(free_bytes), 0.0, 1.0);
}

}  // namespace spillway
