#include "cli/tiers/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "cli/size.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "include/spillway/offload.h"
#include "include/spillway/pinned.h"
#include "stats/host_memory.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTag = "bench-tiers";

const char* answer_of(int attribute) {
  return attribute == DeviceProperties::kUnknown ? "unknown" : attribute != 0 ? "yes" : "no";
}

Status last_error(spw_status status) {
  return status == SPW_OK ? Status() : Status(status, spw_last_error());
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// Seconds that `body`, which answers a Status, takes.
template <typename Body>
Status timed(double* seconds, Body body) {
  const auto begin = std::chrono::steady_clock::now();
  Status status = body();
  *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return status;
}

// The primary context of the device, current for this thread.
class Context {
 public:
  explicit Context(std::shared_ptr<const Driver> driver) : driver_(std::move(driver)) {}
  ~Context() {
    if (stream_ != nullptr) (void)driver_->cuStreamDestroy(stream_);
    if (context_ == nullptr) return;
    (void)driver_->cuCtxSetCurrent(nullptr);
    (void)driver_->cuDevicePrimaryCtxRelease(device_);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Status open(int ordinal) {
    Status status = driver_->check(driver_->cuDeviceGet(&device_, ordinal), "cuDeviceGet");
    if (status.ok()) {
      status =
          driver_->check(driver_->cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
    }
    if (status.ok()) status = driver_->check(driver_->cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    if (status.ok())
      status = driver_->check(driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return status;
  }
  const Driver& driver() const { return *driver_; }
  CUdevice device() const { return device_; }
  CUstream stream() const { return stream_; }

 private:
  std::shared_ptr<const Driver> driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

// Copies of so many bytes, all of the block again and again, through one pinned buffer: what the link gives.
Status measure_copies(const Context& context, int device, void* block, uint64_t block_bytes, uint64_t bytes,
                      Json& figures) {
  const uint64_t part = std::min<uint64_t>(block_bytes, uint64_t{256} << 20);
  void* host = nullptr;
  if (Status status = last_error(spw_pinned_alloc(part, device, &host)); !status.ok()) return status;
  const auto va = reinterpret_cast<CUdeviceptr>(block);
  const Driver& driver = context.driver();
  double out = 0;
  double in = 0;
  const auto copy = [&](bool to_host) {
    for (uint64_t at = 0; at + part <= bytes; at += part) {
      const CUdeviceptr there = va + at % (block_bytes / part * part);
      const CUresult result = to_host ? driver.cuMemcpyDtoHAsync(host, there, part, context.stream())
                                      : driver.cuMemcpyHtoDAsync(there, host, part, context.stream());
      if (Status status = driver.check(result, "cuMemcpyAsync"); !status.ok()) return status;
    }
    return driver.check(driver.cuStreamSynchronize(context.stream()), "cuStreamSynchronize");
  };
  Status status = timed(&out, [&] { return copy(true); });
  if (status.ok()) status = timed(&in, [&] { return copy(false); });
  const Status freed = last_error(spw_pinned_free(host));
  if (!status.ok() || !freed.ok()) return status.ok() ? freed : status;
  const uint64_t parts = bytes / part;
  const auto copied = static_cast<double>(parts * part);
  figures["copy_out_bytes_per_s"] = copied / out;
  figures["copy_in_bytes_per_s"] = copied / in;
  return {};
}

Status measure_moves(int device, uint64_t bytes, const char* name, spw_tier tier, Json& figures) {
  double out = 0;
  double in = 0;
  Status status = timed(&out, [&] { return last_error(spw_region_evict(device, kTag, tier)); });
  if (status.ok()) status = timed(&in, [&] { return last_error(spw_region_restore(device, kTag)); });
  if (!status.ok()) return status;
  figures[fmt::format("evict_{}_bytes_per_s", name)] = static_cast<double>(bytes) / out;
  figures[fmt::format("restore_{}_bytes_per_s", name)] = static_cast<double>(bytes) / in;
  return {};
}

// Measures what programs use that leave it to the driver: memory that moves, asked for ahead, to the host and
// back.
Status measure_managed(const Context& context, uint64_t bytes, Json& figures) {
  const Driver& driver = context.driver();
  if (driver.cuMemAllocManaged == nullptr || driver.cuMemPrefetchAsync == nullptr)
    return Status::unsupported("the driver has no cuMemPrefetchAsync of CUDA 12.2");
  CUdeviceptr block = 0;
  Status status =
      driver.check(driver.cuMemAllocManaged(&block, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
  if (!status.ok()) return status;
  const auto move = [&](CUmemLocation to) {
    Status moved =
        driver.check(driver.cuMemPrefetchAsync(block, bytes, to, 0, context.stream()), "cuMemPrefetchAsync");
    if (!moved.ok()) return moved;
    return driver.check(driver.cuStreamSynchronize(context.stream()), "cuStreamSynchronize");
  };
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, context.device()};
  const CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  double out = 0;
  double in = 0;
  status = move(here);
  if (status.ok()) {
    status = driver.check(driver.cuMemsetD8Async(block, 0x5a, bytes, context.stream()), "cuMemsetD8Async");
  }
  // The first way out makes the host's pages.
  for (int round = 0; status.ok() && round < 2; ++round) {
    status = timed(&out, [&] { return move(host); });
    if (status.ok()) status = timed(&in, [&] { return move(here); });
  }
  Status freed = driver.check(driver.cuMemFree(block), "cuMemFree");
  if (!status.ok() || !freed.ok()) return status.ok() ? std::move(freed) : std::move(status);
  figures["managed_out_bytes_per_s"] = static_cast<double>(bytes) / out;
  figures["managed_in_bytes_per_s"] = static_cast<double>(bytes) / in;
  return {};
}

// Copies through a small block, for what serves other programs too.
Status measure_link(const std::shared_ptr<const Driver>& driver, int device, uint64_t bytes, Json& figures) {
  constexpr uint64_t kMostBlockBytes = 64 << 20;
  constexpr uint64_t kMostBytes = uint64_t{1} << 30;
  Context context(driver);
  if (Status status = context.open(device); !status.ok()) return status;
  const uint64_t block_bytes = std::min(bytes, kMostBlockBytes);
  void* block = nullptr;
  Status status = last_error(spw_alloc(block_bytes, device, context.stream(), &block));
  if (status.ok())
    status = measure_copies(context, device, block, block_bytes, std::min(bytes, kMostBytes), figures);
  (void)spw_free(block);
  return status;
}

}  // namespace

// ---- Facts

Result<Json> device_facts(int device, uint64_t bytes) {
  Result<std::shared_ptr<const Driver>> driver = Driver::open();
  if (!driver.ok()) return Json{{"available", false}, {"reason", driver.status().text()}};
  Result<DeviceProperties> properties = query_device(*driver.value(), device);
  if (properties.status().code() == SPW_ERROR_INVALID_ARGUMENT) return properties.take_status();
  if (!properties.ok()) return Json{{"available", false}, {"reason", properties.status().text()}};
  Json facts{{"available", true},
             {"name", properties->name},
             {"driver", driver.value()->version()},
             {"total_bytes", properties->total_bytes},
             {"vmm", properties->vmm_supported},
             {"host_memory_mapped", answer_of(properties->host_vmm)},
             {"numa_node", properties->host_numa_id},
             {"copy_out_bytes_per_s", nullptr},
             {"copy_in_bytes_per_s", nullptr},
             {"copies_reason", ""}};
  if (Status status = measure_link(driver.value(), device, bytes, facts); !status.ok())
    facts["copies_reason"] = first_line(status.text());
  return facts;
}

std::string device_text(const Json& facts) {
  if (!facts["available"].get<bool>())
    return fmt::format("device  none: {}\n", facts["reason"].get<std::string>());
  const auto mapped = facts["host_memory_mapped"].get<std::string>();
  std::string text =
      fmt::format("device  {}, {}: regions {}, host memory mapped into the device: {}\n",
                  facts["name"].get<std::string>(), format_size(facts["total_bytes"].get<uint64_t>()),
                  facts["vmm"].get<bool>() ? "yes" : "no (no virtual memory management)",
                  mapped == "yes" ? mapped : mapped + " (what is placed there is in pinned memory)");
  if (const auto reason = facts["copies_reason"].get<std::string>(); !reason.empty())
    return text + fmt::format("        copies were not measured: {}\n", reason);
  return text + fmt::format("        copies to pinned memory {:.2f} GB/s, back {:.2f} GB/s\n",
                            facts["copy_out_bytes_per_s"].get<double>() / kGb,
                            facts["copy_in_bytes_per_s"].get<double>() / kGb);
}

Json host_facts() {
  const HostMemory memory = read_host_memory();
  std::vector<char> limit(64);
  (void)spw_conf_get("pinned_limit", limit.data(), limit.size(), nullptr);
  return {{"total_bytes", memory.total_bytes},
          {"free_bytes", memory.available_bytes},
          {"pinned_limit", std::string(limit.data())}};
}

std::string host_text(const Json& facts) {
  return fmt::format("host    {}, {} free; at most {} of it is pinned, and half of what is left stays free\n",
                     format_size(facts["total_bytes"].get<uint64_t>()),
                     format_size(std::max<uint64_t>(facts["free_bytes"].get<uint64_t>(), 1)),
                     facts["pinned_limit"].get<std::string>());
}

// ---- Measured

Result<Json> bench_device(int device, uint64_t bytes) {
  Result<std::shared_ptr<const Driver>> driver = Driver::open();
  if (!driver.ok()) return driver.take_status();
  Result<DeviceProperties> properties = query_device(*driver.value(), device);
  if (!properties.ok()) return properties.take_status();
  Context context(driver.value());
  if (Status status = context.open(device); !status.ok()) return status;
  void* block = nullptr;
  Status status = last_error(spw_region_begin(device, kTag));
  if (!status.ok()) return status;
  status = last_error(spw_alloc(bytes, device, context.stream(), &block));
  (void)spw_region_end(device, kTag);
  if (!status.ok()) return status;
  Json figures{{"name", properties->name}, {"bytes", bytes}};
  // Not all zero, which would not be written.
  status = context.driver().check(
      context.driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(block), 0x5a, bytes, context.stream()),
      "cuMemsetD8Async");
  if (status.ok()) status = measure_moves(device, bytes, "first", SPW_TIER_HOST, figures);
  if (status.ok()) status = measure_moves(device, bytes, "host", SPW_TIER_HOST, figures);
  if (status.ok()) status = measure_moves(device, bytes, "disk", SPW_TIER_DISK, figures);
  if (status.ok()) status = measure_copies(context, device, block, bytes, bytes, figures);
  const Status freed = last_error(spw_free(block));
  (void)spw_region_release(device, kTag);
  if (!status.ok() || !freed.ok()) return status.ok() ? freed : status;
  figures["managed_out_bytes_per_s"] = nullptr;
  figures["managed_in_bytes_per_s"] = nullptr;
  figures["managed_reason"] = first_line(measure_managed(context, bytes, figures).text());
  return figures;
}

std::string bench_text(const Json& figures) {
  std::string text =
      fmt::format("device  {}, a region of {}\n\n{:<34}{:>12}{:>12}\n", figures["name"].get<std::string>(),
                  format_size(figures["bytes"].get<uint64_t>()), "GB/s", "out", "back");
  const auto row = [&](const char* what, const char* out, const char* in) {
    text += fmt::format("{:<34}{:>12.2f}{:>12.2f}\n", what, figures[out].get<double>() / kGb,
                        figures[in].get<double>() / kGb);
  };
  row("plain copies, pinned memory", "copy_out_bytes_per_s", "copy_in_bytes_per_s");
  row("region, host, first time (pins)", "evict_first_bytes_per_s", "restore_first_bytes_per_s");
  row("region, host", "evict_host_bytes_per_s", "restore_host_bytes_per_s");
  row("region, disk", "evict_disk_bytes_per_s", "restore_disk_bytes_per_s");
  if (const auto reason = figures["managed_reason"].get<std::string>(); !reason.empty())
    return text + fmt::format("managed memory was not measured: {}\n\n", reason);
  row("managed memory, prefetched", "managed_out_bytes_per_s", "managed_in_bytes_per_s");
  return text + "\n";
}

}  // namespace spillway
