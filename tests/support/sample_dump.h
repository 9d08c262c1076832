// A dump of counters that really counted something.
#pragma once

#include "stats/counters.h"
#include "stats/dump.h"

namespace spillway {

inline Dump sample_dump() {
  constexpr int64_t kPage = 2 << 20;
  DeviceCounters counters;
  HeapCounters heap(counters);
  counters.on_driver_call(DriverCall::kCreate, 2);
  counters.on_rung(Rung::kNewPages, true, 1500);
  counters.on_rung(Rung::kOutOfMemory, true, 20);
  counters.on_reserve(2 * kPage, 2);
  heap.on_pages(2 * kPage);
  heap.on_allocate(SizePool::kLarge, 1000, 1024, kPage);

  DumpDevice device;
  device.name = "a device";
  device.uuid = "GPU-0";
  device.total_bytes = 1 << 30;
  device.stats = counters.snapshot();
  device.annotations = {{"parameter_bytes", 1000}};
  SegmentRow segment;
  segment.address = 0x10000000;
  segment.total_bytes = 2 * kPage;
  segment.allocated_bytes = segment.active_bytes = 1024;
  segment.requested_bytes = 1000;
  segment.blocks = {{0x10000000, 1024, 1000, BlockKind::kActiveAllocated},
                    {0x10000400, 2 * kPage - 1024, 0, BlockKind::kInactive}};
  device.segments.push_back(segment);
  device.free_bytes = (1 << 30) - 3 * kPage;
  device.tiers.emplace();
  device.tiers->stats.region_host_bytes = kPage;
  device.tiers->stats.disk_limit_bytes = device.tiers->stats.disk_daily_limit_bytes = UINT64_MAX;
  device.tiers->regions.push_back({"weights", {}});
  device.tiers->regions[0].stats.host_bytes = kPage;
  device.pools.push_back({1, 2, {kPage, kPage, kPage, 0}});
  SlowPath climb;
  climb.requested_bytes = 1000;
  climb.note(Rung::kHostWait, true, 1500);
  device.climbs.push_back(climb);

  Dump dump;
  dump.library_version = "0.1.0";
  dump.process_id = 1;
  dump.reason = "call";
  dump.config = {{"limit", "unlimited"}};
  dump.pinned.emplace();
  dump.devices.push_back(device);
  return dump;
}

}  // namespace spillway
