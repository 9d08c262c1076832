#include "bench/driver_probe/rounds.h"

#include <nlohmann/json.hpp>

#include "bench/driver_probe/timing.h"

namespace spillway::probe {

void run_round(const Session& session, size_t count, size_t bytes, Round& round, Sharing sharing) {
  const Driver& driver = session.driver();
  AddressRange range;
  round.reserve.push_back(time_ns([&] { range = require(AddressRange::reserve(driver, count * bytes)); }));
  std::vector<PhysicalHandle> handles(count);
  for (PhysicalHandle& handle : handles) {
    round.create.push_back(
        time_ns([&] { handle = require(PhysicalHandle::create(driver, session.device(), bytes, sharing)); }));
  }
  size_t mapped = 0;
  try {
    for (const PhysicalHandle& handle : handles) {
      round.map.push_back(time_ns([&] { require(map(driver, range.base() + mapped, handle)); }));
      mapped += bytes;
    }
    round.access.push_back(
        time_ns([&] { require(set_access(driver, range.base(), mapped, session.device())); }));
  } catch (const Failure&) {
    driver.cuMemUnmap(range.base(), mapped);
    throw;
  }
  round.unmap.push_back(time_ns([&] { require(unmap(driver, range.base(), mapped)); }));
  for (PhysicalHandle& handle : handles) {
    round.release.push_back(time_ns([&] { require(handle.release()); }));
  }
  round.free.push_back(time_ns([&] { range.reset(); }));
}

Json round_json(const Round& round, size_t count) {
  const uint64_t create = median(round.create), map = median(round.map), release = median(round.release);
  const uint64_t access = median(round.access), unmap = median(round.unmap);
  return {{"handles", count},
          {"reserve_ns", median(round.reserve)},
          {"create_ns_each", create},
          {"map_ns_each", map},
          {"set_access_ns_once", access},
          {"unmap_ns_once", unmap},
          {"release_ns_each", release},
          {"address_free_ns", median(round.free)},
          {"all_ns", count * (create + map + release) + access + unmap}};
}

}  // namespace spillway::probe
