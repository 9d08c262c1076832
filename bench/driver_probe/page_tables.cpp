// Measures what the driver takes of the device's memory for mappings and for itself, and what it answers when
// that is used up.
#include <nlohmann/json.hpp>

#include "bench/driver_probe/kernels.h"
#include "bench/driver_probe/sections.h"
#include "bench/driver_probe/timing.h"

namespace spillway::probe {
namespace {

constexpr size_t kGib = size_t{1} << 30;

// One handle, mapped again and again at neighbouring addresses: address space is used up, memory is not.
class Aliases {
 public:
  Aliases(const Session& session, size_t handle_bytes, size_t most_bytes)
      : session_(session),
        handle_(require(PhysicalHandle::create(session.driver(), session.device(), handle_bytes))),
        range_(require(AddressRange::reserve(session.driver(), most_bytes))) {}
  Aliases(const Aliases&) = delete;
  Aliases& operator=(const Aliases&) = delete;
  ~Aliases() {
    if (mapped_ > 0) session_.driver().cuMemUnmap(range_.base(), mapped_);
  }

  // Maps and makes accessible `bytes` more. An error: what the driver said, and nothing of it stays mapped.
  Status extend(size_t bytes) {
    const Driver& driver = session_.driver();
    const CUdeviceptr begin = range_.base() + mapped_;
    size_t made = 0;
    Status status;
    while (made < bytes && status.ok()) {
      status = map(driver, begin + made, handle_);
      if (status.ok()) made += handle_.bytes();
    }
    if (status.ok()) status = set_access(driver, begin, bytes, session_.device());
    if (status.ok()) {
      mapped_ += bytes;
    } else if (made > 0) {
      driver.cuMemUnmap(begin, made);
    }
    return status;
  }
  size_t mapped() const { return mapped_; }
  size_t most() const { return range_.bytes(); }

 private:
  const Session& session_;
  PhysicalHandle handle_;
  AddressRange range_;
  size_t mapped_ = 0;
};

// By how much cuMemGetInfo falls for each GiB that is mapped.
double used_bytes_per_gib(const Session& session, size_t handle_bytes, Json& report) {
  Aliases aliases(session, handle_bytes, session.options().mapped_bytes);
  const size_t before = session.free_bytes();
  while (aliases.mapped() < aliases.most()) require(aliases.extend(kGib));
  const auto used = static_cast<double>(static_cast<int64_t>(before - session.free_bytes()));
  const double per_gib = used * static_cast<double>(kGib) / static_cast<double>(aliases.mapped());
  report.push_back(
      {{"handle_bytes", handle_bytes}, {"mapped_bytes", aliases.mapped()}, {"used_bytes_per_gib", per_gib}});
  return per_gib;
}

std::vector<PhysicalHandle> fill_device(const Session& session, Json& report) {
  std::vector<PhysicalHandle> held;
  size_t held_bytes = 0;
  for (size_t bytes = kGib; bytes >= session.granule(); bytes /= 8) {
    while (true) {
      Result<PhysicalHandle> handle = PhysicalHandle::create(session.driver(), session.device(), bytes);
      if (!handle.ok()) {
        report["create_answers"] = handle.status().text();
        break;
      }
      held.push_back(std::move(handle.value()));
      held_bytes += bytes;
    }
  }
  report["held_bytes"] = held_bytes;
  report["free_bytes"] = session.free_bytes();
  return held;
}

// Asks for what else needs memory of the driver's own.
Json answers_when_full(const Session& session) {
  const Driver& driver = session.driver();
  Json answers;
  CUstream stream = nullptr;
  answers["cuStreamCreate"] =
      session.answer(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  if (stream != nullptr) driver.cuStreamDestroy(stream);
  CUevent event = nullptr;
  answers["cuEventCreate"] =
      session.answer(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  if (event != nullptr) driver.cuEventDestroy(event);
  if (driver.cuModuleLoadData != nullptr && driver.cuModuleUnload != nullptr) {
    CUmodule module = nullptr;
    answers["cuModuleLoadData"] =
        session.answer(driver.cuModuleLoadData(&module, kKernels), "cuModuleLoadData");
    if (module != nullptr) driver.cuModuleUnload(module);
  }
  return answers;
}

}  // namespace

Json measure_page_tables(Session& session) {
  Json report;
  Json by_handle = Json::array();
  report["used_bytes_per_mapped_gib"] = used_bytes_per_gib(session, session.granule(), by_handle);
  used_bytes_per_gib(session, std::max(session.granule(), size_t{64} << 20), by_handle);
  report["by_size_of_handle"] = by_handle;

  Aliases aliases(session, session.granule(), session.options().mapped_bytes);
  Json& full = report["when_full"];
  const std::vector<PhysicalHandle> held = fill_device(session, full);
  Status status;
  while (aliases.mapped() < aliases.most() && status.ok()) status = aliases.extend(kGib / 8);
  full["mapped_bytes"] = aliases.mapped();
  full["mapping_answers"] = status.ok() ? "works" : status.text();
  full["answers"] = answers_when_full(session);
  if (report["used_bytes_per_mapped_gib"] == 0.0) {
    report["note"] = "mappings took no memory that cuMemGetInfo counts: full devices answer as others";
  }
  return report;
}

}  // namespace spillway::probe
