#include "abi/tier_stats.h"

namespace spillway {

spw_tier_stats tier_stats(DeviceTiers& tiers, const RegionUsage& regions) {
  spw_tier_stats stats{};
  stats.region_host_bytes = regions.host_bytes;
  stats.region_disk_bytes = regions.disk_bytes;
  const StashCounters stashes = tiers.stashes().counters();
  stats.stash_host_bytes = stashes.host_bytes;
  stats.stash_disk_bytes = stashes.disk_bytes;
  stats.stashes = stashes.stashes;
  stats.stash_puts = stashes.puts;
  stats.stash_gets = stashes.gets;
  stats.late_gets = stashes.late_gets;
  stats.refused_puts = stashes.refused_puts;
  stats.out_bytes = tiers.copy_streams().out_bytes();
  stats.in_bytes = tiers.copy_streams().in_bytes();
  const DiskCounters disk = tiers.disk().counters();
  stats.disk_written_bytes = disk.written_bytes;
  stats.disk_read_bytes = disk.read_bytes;
  stats.disk_zero_bytes = disk.zero_bytes;
  stats.disk_verified_bytes = disk.verified_bytes;
  stats.disk_mismatches = disk.mismatches;
  stats.disk_repeated_writes = disk.repeated_writes;
  stats.disk_failed_writes = disk.failed_writes;
  stats.disk_file_bytes = tiers.disk().usage().file_bytes;
  stats.disk_limit_bytes = tiers.disk().limit_bytes();
  stats.disk_saved_bytes = disk.saved_bytes;
  stats.disk_today_bytes = disk.today_bytes;
  stats.disk_daily_limit_bytes = tiers.disk().options().daily_write_bytes;
  stats.stuck_bytes = regions.stuck_bytes;
  stats.lasting_error = static_cast<uint64_t>(tiers.copy_streams().lasting_error());
  return stats;
}

}  // namespace spillway
