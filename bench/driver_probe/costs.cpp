#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/driver_probe/rounds.h"
#include "bench/driver_probe/sections.h"
#include "bench/driver_probe/timing.h"

namespace spillway::probe {
namespace {

constexpr size_t kLarge = size_t{64} << 20;
constexpr unsigned kBusyMilliseconds = 20;

void measure_plain_memory(const Session& session, Json& costs) {
  const Driver& driver = session.driver();
  std::vector<uint64_t> alloc, free, host_alloc, host_free;
  for (int i = 0; i < session.options().repeats; ++i) {
    DeviceBlock block;
    alloc.push_back(time_ns([&] { block = require(DeviceBlock::allocate(driver, session.granule())); }));
    free.push_back(time_ns([&] { require(block.release()); }));
    void* host = nullptr;
    host_alloc.push_back(time_ns([&] {
      session.check(driver.cuMemHostAlloc(&host, session.granule(), CU_MEMHOSTALLOC_PORTABLE),
                    "cuMemHostAlloc");
    }));
    host_free.push_back(time_ns([&] { session.check(driver.cuMemFreeHost(host), "cuMemFreeHost"); }));
  }
  costs["cuMemAlloc"] = median(alloc);
  costs["cuMemFree"] = median(free);
  costs["cuMemHostAlloc"] = median(host_alloc);
  costs["cuMemFreeHost"] = median(host_free);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  costs["cuMemGetInfo"] = median_ns(session.options().repeats, [&] {
    session.check(driver.cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
  });
}

void measure_events(const Session& session, Json& costs) {
  const Driver& driver = session.driver();
  const int many = session.options().repeats * 10;
  std::vector<uint64_t> create, record, query, synchronize, stream_wait, destroy;
  for (int i = 0; i < many; ++i) {
    Event event;
    create.push_back(time_ns([&] { event = require(Event::create(driver)); }));
    record.push_back(time_ns([&] { require(event.record(session.stream(0))); }));
    stream_wait.push_back(time_ns([&] { require(event.make_wait(session.stream(1))); }));
    synchronize.push_back(time_ns([&] { require(event.synchronize()); }));
    query.push_back(time_ns([&] { require(event.completed()); }));
    destroy.push_back(time_ns([&] { event.reset(); }));
  }
  costs["cuEventCreate"] = median(create);
  costs["cuEventRecord"] = median(record);
  costs["cuStreamWaitEvent"] = median(stream_wait);
  costs["cuEventSynchronize"] = median(synchronize);
  costs["cuEventQuery"] = median(query);
  costs["cuEventDestroy"] = median(destroy);
  const CUstream stream = session.stream(0);
  costs["cuStreamQuery"] = median_ns(many, [&] { driver.cuStreamQuery(stream); });
  costs["cuStreamSynchronize"] =
      median_ns(many, [&] { session.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize"); });
  costs["cuCtxSynchronize"] = median_ns(many, [&] { session.wait(); });
}

// Shorter than the clock's own reading: many answers to a sample.
void measure_current_context(const Session& session, Json& costs) {
  constexpr int kAnswers = 1000;
  const Driver& driver = session.driver();
  const uint64_t ns = median_ns(session.options().repeats, [&] {
    for (int i = 0; i < kAnswers; ++i) {
      CUcontext context = nullptr;
      session.check(driver.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    }
  });
  costs["cuCtxGetCurrent"] = ns / kAnswers;
}

void measure_enqueue(const Session& session, Json& costs) {
  const Driver& driver = session.driver();
  const DeviceBlock block = require(DeviceBlock::allocate(driver, session.granule()));
  const CUdeviceptr half = block.base() + block.bytes() / 2;
  const CUstream stream = session.stream(0);
  const int repeats = session.options().repeats;
  costs["cuMemsetD8Async"] = median_ns(repeats, [&] {
    session.check(driver.cuMemsetD8Async(block.base(), 0, 4096, stream), "cuMemsetD8Async");
  });
  costs["cuMemcpyAsync"] = median_ns(repeats, [&] {
    session.check(driver.cuMemcpyAsync(half, block.base(), 4096, stream), "cuMemcpyAsync");
  });
  if (session.has_kernels()) {
    costs["cuLaunchKernel"] = median_ns(repeats, [&] { session.fill(block.base(), 4096, 0, stream); });
  }
  session.wait();
}

// One call while stream 0 is busy for 20 ms. A call that waits for the work takes about that long and finds
// it done.
template <typename Call>
Json behind_work(Session& session, Call&& call) {
  const Event end = require(Event::create(session.driver()));
  session.wait();
  session.occupy(kBusyMilliseconds);
  require(end.record(session.stream(0)));
  const uint64_t ns = time_ns(call);
  const bool running = !require(end.completed());
  session.wait();
  return {{"ns", ns}, {"work_still_running", running}};
}

}  // namespace

Json measure_costs(Session& session) {
  Json costs = Json::object();
  if (session.properties().vmm_supported) {
    Round round;
    for (int i = 0; i < session.options().repeats; ++i) run_round(session, 1, session.granule(), round);
    costs["cuMemAddressReserve"] = median(round.reserve);
    costs["cuMemCreate"] = median(round.create);
    costs["cuMemMap"] = median(round.map);
    costs["cuMemSetAccess"] = median(round.access);
    costs["cuMemUnmap"] = median(round.unmap);
    costs["cuMemRelease"] = median(round.release);
    costs["cuMemAddressFree"] = median(round.free);
  }
  measure_plain_memory(session, costs);
  measure_events(session, costs);
  measure_current_context(session, costs);
  measure_enqueue(session, costs);
  return costs;
}

Json measure_ranges(Session& session) {
  const size_t granule = session.granule();
  Json ranges;
  Round one, many, exportable;
  for (int i = 0; i < session.options().repeats; ++i) {
    run_round(session, 1, kLarge, one);
    run_round(session, kLarge / granule, granule, many);
    run_round(session, kLarge / granule, granule, exportable, Sharing::kProcesses);
  }
  ranges["one_handle_of_64_mib"] = round_json(one, 1);
  ranges["granules_of_64_mib"] = round_json(many, kLarge / granule);
  ranges["exportable_granules_of_64_mib"] = round_json(exportable, kLarge / granule);
  ranges["granules_cost_times_one_handle"] =
      ranges["granules_of_64_mib"]["all_ns"].get<double>() /
      std::max(1.0, ranges["one_handle_of_64_mib"]["all_ns"].get<double>());

  // A cost that grows with the mappings is paid per mapping, one that does not is paid per call.
  Json growth = Json::array();
  for (const size_t count : {size_t{1}, size_t{4}, size_t{16}, size_t{64}, size_t{256}}) {
    Round round;
    for (int i = 0; i < 5; ++i) run_round(session, count, granule, round);
    growth.push_back(
        {{"mappings", count}, {"set_access_ns", median(round.access)}, {"unmap_ns", median(round.unmap)}});
  }
  ranges["one_call_over_many_mappings"] = growth;
  const double access_one = growth.front()["set_access_ns"].get<double>();
  const double access_most = growth.back()["set_access_ns"].get<double>();
  ranges["set_access_ns_per_further_mapping"] = (access_most - access_one) / 255;
  return ranges;
}

Json measure_behind_work(Session& session) {
  const Driver& driver = session.driver();
  const size_t granule = session.granule();
  Json report;
  report["work"] = session.has_kernels() ? "a kernel of 20 ms" : "fills; no kernels on this driver";
  const AddressRange range = require(AddressRange::reserve(driver, granule));
  PhysicalHandle handle;
  const auto create = [&] { handle = require(PhysicalHandle::create(driver, session.device(), granule)); };
  report["cuMemCreate"] = behind_work(session, create);
  report["cuMemMap"] = behind_work(session, [&] { require(map(driver, range.base(), handle)); });
  report["cuMemSetAccess"] =
      behind_work(session, [&] { require(set_access(driver, range.base(), granule, session.device())); });
  report["cuMemUnmap"] = behind_work(session, [&] { require(unmap(driver, range.base(), granule)); });
  report["cuMemRelease"] = behind_work(session, [&] { require(handle.release()); });
  DeviceBlock block;
  report["cuMemAlloc"] =
      behind_work(session, [&] { block = require(DeviceBlock::allocate(driver, granule)); });
  report["cuMemFree"] = behind_work(session, [&] { require(block.release()); });
  const Event event = require(Event::create(driver));
  report["cuEventRecord"] = behind_work(session, [&] { require(event.record(session.stream(0))); });
  report["cuEventQuery"] = behind_work(session, [&] { require(event.completed()); });
  mark_silent(session, report,
              {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAlloc",
               "cuMemFree", "cuEventRecord", "cuEventQuery"});
  return report;
}

}  // namespace spillway::probe
