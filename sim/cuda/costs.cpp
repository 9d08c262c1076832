#include "sim/cuda/costs.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace spillway::sim {
namespace {

struct Cost {
  EntryPoint entry;
  uint64_t ns;
};

// Reserve to Unmap: bench_vmm on an A100 80G, second run, 4096 x 2 MiB (kvcached, pull request 16). Release:
// vAttention, A100. The rest has no published figure; these are orders of magnitude until the driver probe
// has run on a device.
constexpr Cost kDefaults[] = {
    {EntryPoint::k_cuMemAddressReserve, 9000}, {EntryPoint::k_cuMemAddressFree, 3000},
    {EntryPoint::k_cuMemCreate, 7600},         {EntryPoint::k_cuMemMap, 1050},
    {EntryPoint::k_cuMemSetAccess, 20800},     {EntryPoint::k_cuMemUnmap, 11500},
    {EntryPoint::k_cuMemRelease, 23000},       {EntryPoint::k_cuMemAlloc, 100000},
    {EntryPoint::k_cuMemFree, 100000},         {EntryPoint::k_cuMemHostAlloc, 300000},
    {EntryPoint::k_cuMemAllocHost, 300000},    {EntryPoint::k_cuMemFreeHost, 200000},
    {EntryPoint::k_cuMemGetInfo, 5000},        {EntryPoint::k_cuEventCreate, 500},
    {EntryPoint::k_cuEventDestroy, 300},       {EntryPoint::k_cuEventRecord, 1000},
    {EntryPoint::k_cuEventQuery, 500},         {EntryPoint::k_cuEventSynchronize, 2000},
    {EntryPoint::k_cuStreamWaitEvent, 800},    {EntryPoint::k_cuStreamQuery, 700},
    {EntryPoint::k_cuStreamSynchronize, 2000}, {EntryPoint::k_cuCtxSynchronize, 3000},
    {EntryPoint::k_cuLaunchKernel, 2500},      {EntryPoint::k_cuMemcpyAsync, 2500},
    {EntryPoint::k_cuMemsetD8Async, 2500},
};

// The first run of bench_vmm, on a device that others used too.
constexpr Cost kDear[] = {
    {EntryPoint::k_cuMemAddressReserve, 19000},
    {EntryPoint::k_cuMemCreate, 193000},
    {EntryPoint::k_cuMemMap, 1450},
    {EntryPoint::k_cuMemSetAccess, 36000},
    {EntryPoint::k_cuMemUnmap, 25600},
};

// The driver probe on an H100 80GB HBM3, driver 580.159.04 (bench/driver_probe/measured_costs.json).
constexpr Cost kH100[] = {
    {EntryPoint::k_cuMemAddressReserve, 1121}, {EntryPoint::k_cuMemAddressFree, 933},
    {EntryPoint::k_cuMemCreate, 13958},        {EntryPoint::k_cuMemMap, 1093},
    {EntryPoint::k_cuMemSetAccess, 28912},     {EntryPoint::k_cuMemUnmap, 19900},
    {EntryPoint::k_cuMemRelease, 14022},       {EntryPoint::k_cuMemAlloc, 74301},
    {EntryPoint::k_cuMemFree, 47333},          {EntryPoint::k_cuMemHostAlloc, 885023},
    {EntryPoint::k_cuMemFreeHost, 355650},     {EntryPoint::k_cuMemGetInfo, 6821},
    {EntryPoint::k_cuEventCreate, 274},        {EntryPoint::k_cuEventDestroy, 200},
    {EntryPoint::k_cuEventRecord, 338},        {EntryPoint::k_cuEventQuery, 397},
    {EntryPoint::k_cuEventSynchronize, 477},   {EntryPoint::k_cuStreamWaitEvent, 324},
    {EntryPoint::k_cuStreamQuery, 350},        {EntryPoint::k_cuStreamSynchronize, 448},
    {EntryPoint::k_cuCtxSynchronize, 667},     {EntryPoint::k_cuLaunchKernel, 4293},
    {EntryPoint::k_cuMemcpyAsync, 5827},       {EntryPoint::k_cuMemsetD8Async, 1191},
};

template <size_t kCount>
void take(const Cost (&costs)[kCount], std::array<uint64_t, kEntryPoints>& costs_ns) {
  for (const Cost& cost : costs) costs_ns[static_cast<size_t>(cost.entry)] = cost.ns;
}

}  // namespace

std::string load_costs(const std::string& file, std::array<uint64_t, kEntryPoints>* costs_ns) {
  costs_ns->fill(0);
  take(kDefaults, *costs_ns);
  if (file == "dear") take(kDear, *costs_ns);
  if (file == "h100") take(kH100, *costs_ns);
  if (file.empty() || file == "cheap" || file == "dear" || file == "h100") return "";

  std::string where = "key 'costs', value '" + file + "': ";
  std::ifstream in(file);
  if (!in) return where + "the file cannot be read";
  const nlohmann::json json = nlohmann::json::parse(in, nullptr, false);
  if (json.is_discarded() || !json.is_object()) return where + "the file is not a JSON object";
  const auto table = json.find("costs_ns");
  if (table == json.end() || !table->is_object()) return where + "the file has no object \"costs_ns\"";
  for (const auto& [name, value] : table->items()) {
    const EntryPoint entry = find_entry_point(name);
    if (entry == EntryPoint::kCount)
      return where.append("\"costs_ns\" has no entry point of the name '").append(name).append("'");
    // A second at most: more is a mistake of units, and sums stay far from overflow.
    if (!value.is_number() || value.get<double>() < 0 || value.get<double>() > 1e9) {
      return where.append("'").append(name).append("' is not a number of nanoseconds from 0 to 1e9");
    }
    (*costs_ns)[static_cast<size_t>(entry)] = static_cast<uint64_t>(value.get<double>());
  }
  return "";
}

}  // namespace spillway::sim
