// Measures what unmapping and giving back cost, by themselves and beside many graphs; how many mappings there
// can be.
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/driver_probe/launch.h"
#include "bench/driver_probe/rounds.h"
#include "bench/driver_probe/sections.h"
#include "bench/driver_probe/timing.h"

namespace spillway::probe {
namespace {

constexpr int kGraphs = 64;
constexpr int kNodesPerGraph = 200;

// Median of unmapping `count` neighbouring granules, in one call or in one for each.
uint64_t unmap_ns(const Session& session, size_t count, bool in_one_call) {
  const Driver& driver = session.driver();
  const size_t granule = session.granule();
  const PhysicalHandle handle = require(PhysicalHandle::create(driver, session.device(), granule));
  std::vector<uint64_t> times;
  for (int i = 0; i < std::max(1, session.options().repeats / 4); ++i) {
    const AddressRange range = require(AddressRange::reserve(driver, count * granule));
    for (size_t k = 0; k < count; ++k) require(map(driver, range.base() + k * granule, handle));
    require(set_access(driver, range.base(), count * granule, session.device()));
    times.push_back(time_ns([&] {
      if (in_one_call) return require(unmap(driver, range.base(), count * granule));
      for (size_t k = 0; k < count; ++k) require(unmap(driver, range.base() + k * granule, granule));
    }));
  }
  return median(std::move(times));
}

Json runs_of_mappings(const Session& session) {
  Json runs = Json::array();
  for (const size_t count : {size_t{1}, size_t{32}, size_t{512}}) {
    const uint64_t one = unmap_ns(session, count, true);
    const uint64_t each = unmap_ns(session, count, false);
    runs.push_back(
        {{"mappings", count},
         {"one_call_ns", one},
         {"call_for_each_ns", each},
         {"saved_times", static_cast<double>(each) / static_cast<double>(std::max<uint64_t>(one, 1))}});
  }
  return runs;
}

std::vector<Graph> resident_graphs(const Session& session, CUdeviceptr memory, size_t bytes) {
  std::vector<Graph> graphs;
  const CUstream stream = session.stream(0);
  for (int i = 0; i < kGraphs; ++i) {
    graphs.emplace_back(session, stream, [&] {
      for (int node = 0; node < kNodesPerGraph; ++node) session.fill(memory, bytes, 0, stream);
    });
    graphs.back().launch(stream);
  }
  session.wait();
  return graphs;
}

Json granules_and_runs(const Session& session) {
  constexpr size_t kHandles = 32;
  Round round;
  for (int i = 0; i < session.options().repeats; ++i) {
    run_round(session, kHandles, session.granule(), round);
  }
  return {{"granules", round_json(round, kHandles)}, {"unmap_runs", runs_of_mappings(session)}};
}

}  // namespace

Json measure_unmap_runs(Session& session) {
  const Json runs = runs_of_mappings(session);
  return {{"runs", runs}, {"saved_times", runs.back()["saved_times"]}};
}

Json measure_beside_graphs(Session& session) {
  Json report = {{"graphs", kGraphs}, {"nodes_per_graph", kNodesPerGraph}};
  report["without"] = granules_and_runs(session);
  const DeviceBlock memory = require(DeviceBlock::allocate(session.driver(), session.granule()));
  {
    const std::vector<Graph> graphs = resident_graphs(session, memory.base(), 4096);
    report["with"] = granules_and_runs(session);
  }
  const auto all_ns = [&](const char* which) { return report[which]["granules"]["all_ns"].get<double>(); };
  report["costs_times_without"] = all_ns("with") / std::max(1.0, all_ns("without"));
  return report;
}

Json measure_trim(Session& session) {
  const size_t granule = session.granule();
  const size_t bytes = std::min(session.options().trim_bytes, session.free_bytes() / 10 * 9);
  const size_t count = std::max<size_t>(1, bytes / granule);
  Round round;
  const uint64_t all_ns = time_ns([&] { run_round(session, count, granule, round); });
  const auto sum = [](const std::vector<uint64_t>& times) {
    return std::accumulate(times.begin(), times.end(), uint64_t{0});
  };
  return {{"bytes", count * granule},
          {"handles", count},
          {"create_ns", sum(round.create)},
          {"map_ns", sum(round.map)},
          {"set_access_ns", sum(round.access)},
          {"unmap_ns", sum(round.unmap)},
          {"release_ns", sum(round.release)},
          {"give_back_ns", sum(round.unmap) + sum(round.release)},
          {"all_ns", all_ns}};
}

Json find_mapping_limit(Session& session) {
  const Driver& driver = session.driver();
  const size_t granule = session.granule();
  const auto wanted = static_cast<size_t>(session.options().max_mappings);
  const PhysicalHandle handle = require(PhysicalHandle::create(driver, session.device(), granule));
  const AddressRange range = require(AddressRange::reserve(driver, wanted * granule));
  size_t made = 0;
  Json report;
  report["stopped_by"] = "--max-mappings";
  while (made < wanted) {
    const CUdeviceptr va = range.base() + made * granule;
    Status status = map(driver, va, handle);
    if (status.ok()) {
      status = set_access(driver, va, granule, session.device());
      if (!status.ok()) require(unmap(driver, va, granule));
    }
    if (!status.ok()) {
      report["stopped_by"] = status.text();
      break;
    }
    ++made;
  }
  report["live_mappings"] = made;
  report["unmap_ns"] = time_ns([&] {
    if (made > 0) require(unmap(driver, range.base(), made * granule));
  });
  return report;
}

}  // namespace spillway::probe
