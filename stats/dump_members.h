// The counters of pinned memory, tiers and regions by name, for what writes dumps and their schema.
#pragma once

#include "include/spillway/offload.h"
#include "include/spillway/stats.h"

namespace spillway {

template <typename Stats, typename Value>
struct Member {
  const char* name;
  Value Stats::*value;
};

inline constexpr Member<spw_tier_stats, uint64_t> kTierMembers[] = {
#define SPW_MEMBER(name) \
  { #name, &spw_tier_stats::name }
    SPW_MEMBER(region_host_bytes),
    SPW_MEMBER(region_disk_bytes),
    SPW_MEMBER(stash_host_bytes),
    SPW_MEMBER(stash_disk_bytes),
    SPW_MEMBER(stashes),
    SPW_MEMBER(stash_puts),
    SPW_MEMBER(stash_gets),
    SPW_MEMBER(late_gets),
    SPW_MEMBER(refused_puts),
    SPW_MEMBER(out_bytes),
    SPW_MEMBER(in_bytes),
    SPW_MEMBER(disk_written_bytes),
    SPW_MEMBER(disk_read_bytes),
    SPW_MEMBER(disk_zero_bytes),
    SPW_MEMBER(disk_verified_bytes),
    SPW_MEMBER(disk_mismatches),
    SPW_MEMBER(disk_repeated_writes),
    SPW_MEMBER(disk_failed_writes),
    SPW_MEMBER(disk_file_bytes),
    SPW_MEMBER(disk_limit_bytes),
    SPW_MEMBER(disk_saved_bytes),
    SPW_MEMBER(disk_today_bytes),
    SPW_MEMBER(disk_daily_limit_bytes),
    SPW_MEMBER(stuck_bytes),
    SPW_MEMBER(lasting_error),
#undef SPW_MEMBER
};

inline constexpr Member<spw_region_stats, uint64_t> kRegionMembers[] = {
#define SPW_MEMBER(name) \
  { #name, &spw_region_stats::name }
    SPW_MEMBER(device_bytes), SPW_MEMBER(host_bytes), SPW_MEMBER(disk_bytes), SPW_MEMBER(discarded_bytes),
    SPW_MEMBER(lost_bytes),   SPW_MEMBER(pins),       SPW_MEMBER(evictions),  SPW_MEMBER(restores),
    SPW_MEMBER(evict_ns),     SPW_MEMBER(restore_ns),
#undef SPW_MEMBER
};

inline constexpr Member<spw_pinned_stats, spw_stat> kPinnedMembers[] = {
#define SPW_MEMBER(name) \
  { #name, &spw_pinned_stats::name }
    SPW_MEMBER(blocks), SPW_MEMBER(active_bytes),   SPW_MEMBER(requested_bytes),
    SPW_MEMBER(chunks), SPW_MEMBER(reserved_bytes),
#undef SPW_MEMBER
};

inline constexpr const char* kRungNames[] = {
#define SPW_STATS_MEMBER(name, Name) #name,
    SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
};

}  // namespace spillway
