#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "cli/doctor/checks.h"
#include "cli/size.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "driver/memory.h"

namespace spillway {
namespace {

CheckAnswer answer_of(bool is_so) {
  return is_so ? CheckAnswer::kYes : CheckAnswer::kNo;
}

CheckAnswer answer_of(int attribute) {
  return attribute == DeviceProperties::kUnknown ? CheckAnswer::kUnknown : answer_of(attribute != 0);
}

const char* unless(CheckAnswer answer, const char* why_not) {
  return answer == CheckAnswer::kYes       ? ""
         : answer == CheckAnswer::kUnknown ? "this driver does not say"
                                           : why_not;
}

// Memory on the host, made and given back: what the attributes promise is tried.
Check host_mapping(const Driver& driver, const DeviceProperties& device) {
  Check check{"host_memory_mapped", CheckAnswer::kNo, "", device.ordinal};
  if (!device.vmm_supported) {
    check.detail = "needs virtual memory management";
    return check;
  }
  // Memory at a NUMA node is not tried: some drivers end the process instead of refusing it.
  if (device.host_vmm <= 0) {
    check.detail = "the driver does not offer it: pinned memory serves";
    return check;
  }
  const Result<PhysicalHandle> made = PhysicalHandle::create_on_host(driver, device.granularity_bytes);
  check.answer = answer_of(made.ok());
  check.detail = made.ok() ? "" : made.status().text();
  return check;
}

// A handle that is exported, and the descriptor closed.
Check exported_handles(const Driver& driver, const DeviceProperties& device) {
  Check check{"posix_file_handles", CheckAnswer::kNo, "", device.ordinal};
  if (!device.vmm_supported || device.posix_handles == 0) {
    check.detail = "the device does not offer it: blocks cannot be shown to other processes";
    return check;
  }
  const Result<PhysicalHandle> made =
      PhysicalHandle::create(driver, device.ordinal, device.granularity_bytes, Sharing::kProcesses);
  if (!made.ok()) {
    check.detail = made.status().text();
    return check;
  }
  const Result<int> exported = export_file_descriptor(driver, made.value().get());
  check.answer = answer_of(exported.ok());
  if (exported.ok()) {
    close(exported.value());
  } else {
    check.detail = exported.status().text();
  }
  return check;
}

void examine_device(const Driver& driver, const DeviceProperties& device, std::vector<Check>& checks) {
  const auto add = [&](const char* name, CheckAnswer answer, std::string detail) {
    checks.push_back({name, answer, std::move(detail), device.ordinal});
  };
  add("device", CheckAnswer::kYes,
      fmt::format("{}, {}, compute capability {}.{}, {}", device.name,
                  format_size(std::max<uint64_t>(device.total_bytes, 1)), device.compute_major,
                  device.compute_minor, uuid_text(device.uuid)));
  add("virtual_memory_management", answer_of(device.vmm_supported),
      device.vmm_supported ? fmt::format("pages of {}, {} for speed", format_size(device.granularity_bytes),
                                         format_size(device.recommended_granularity_bytes))
      : driver.has_vmm()   ? "the device lacks it: memory comes from cuMemAlloc, and nothing spills"
                           : "the driver lacks it: memory comes from cuMemAlloc, and nothing spills");
  checks.push_back(host_mapping(driver, device));
  checks.push_back(exported_handles(driver, device));
  const CheckAnswer rdma = answer_of(device.rdma_vmm);
  add("gpu_direct_rdma", rdma, unless(rdma, "network cards cannot reach the device's memory directly"));
  add("multi_instance", answer_of(device.is_mig),
      device.is_mig ? "a slice of a device: no peers" : "a whole device");
}

}  // namespace

Examination examine_devices() {
  Examination out;
  Result<std::shared_ptr<const Driver>> opened = Driver::open();
  if (!opened.ok()) {
    out.checks.push_back({"driver", CheckAnswer::kNo, opened.status().text(), {}});
    return out;
  }
  const Driver& driver = *opened.value();
  out.driver_version = driver.version();
  out.checks.push_back(
      {"driver",
       CheckAnswer::kYes,
       fmt::format("CUDA {}.{}, {}", driver.version() / 1000, driver.version() % 1000 / 10, driver.path()),
       {}});
  int count = 0;
  if (Status status = driver.check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
      !status.ok() || count == 0) {
    out.checks.push_back(
        {"device", CheckAnswer::kNo, status.ok() ? "the driver has no device" : status.text(), {}});
    return out;
  }
  for (int i = 0; i < count; ++i) {
    Result<DeviceProperties> device = query_device(driver, i);
    if (!device.ok()) {
      out.checks.push_back({"device", CheckAnswer::kNo, device.status().text(), i});
      continue;
    }
    out.can_serve = true;
    examine_device(driver, device.value(), out.checks);
  }
  return out;
}

}  // namespace spillway
