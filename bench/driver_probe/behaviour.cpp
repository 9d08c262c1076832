#include <dlfcn.h>

#include <nlohmann/json.hpp>

#include "bench/driver_probe/sections.h"
#include "bench/driver_probe/timing.h"

namespace spillway::probe {
namespace {

constexpr int kRounds = 50;

// Words whose four bytes are equal, so that a byte fill makes them too; a different one each round.
uint32_t pattern(int round) {
  return 0x01010101U * static_cast<uint32_t>(1 + round % 250);
}

Json attribute(const Session& session, int which) {
  int value = 0;
  const CUresult answer = session.driver().cuDeviceGetAttribute(
      &value, static_cast<CUdevice_attribute>(which), session.properties().device);
  if (answer == CUDA_SUCCESS) return value;
  return session.driver().check(answer, "cuDeviceGetAttribute").text();
}

// The pinned host memory of the driver, for as long as it is used.
class HostBlock {
 public:
  HostBlock(const Session& session, size_t bytes) : driver_(&session.driver()) {
    session.check(
        driver_->cuMemHostAlloc(&data_, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
        "cuMemHostAlloc");
  }
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  ~HostBlock() { driver_->cuMemFreeHost(data_); }
  void* data() const { return data_; }

 private:
  const Driver* driver_;
  void* data_ = nullptr;
};

Json pointer_answers(const Session& session, CUdeviceptr ptr) {
  struct Question {
    const char* name;
    CUpointer_attribute which;
  };
  static constexpr Question kQuestions[] = {
      {"memory_type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE},
      {"is_managed", CU_POINTER_ATTRIBUTE_IS_MANAGED},
      {"device_ordinal", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL},
      {"legacy_ipc_capable", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE},
      {"mapped", CU_POINTER_ATTRIBUTE_MAPPED},
      {"range_bytes", CU_POINTER_ATTRIBUTE_RANGE_SIZE},
      {"rdma_capable", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE},
  };
  Json answers;
  for (const Question& question : kQuestions) {
    uint64_t value = 0;
    const CUresult result = session.driver().cuPointerGetAttribute(&value, question.which, ptr);
    if (result == CUDA_SUCCESS) {
      answers[question.name] = value;
    } else {
      answers[question.name] = session.driver().check(result, "cuPointerGetAttribute").text();
    }
  }
  return answers;
}

PhysicalHandle host_handle(const Session& session, size_t bytes) {
  return require(PhysicalHandle::create_on_host(session.driver(), bytes));
}

double gigabytes_per_second(size_t bytes, uint64_t ns) {
  return ns == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(ns);
}

}  // namespace

Json describe(const Session& session) {
  const Driver& driver = session.driver();
  const DeviceProperties& device = session.properties();
  Json report;
  report["driver"] = {{"path", driver.path()}, {"version", driver.version()}, {"has_vmm", driver.has_vmm()}};
  report["device"] = {{"ordinal", device.ordinal},
                      {"name", device.name},
                      {"uuid", uuid_text(device.uuid)},
                      {"total_bytes", device.total_bytes},
                      {"compute_capability", {device.compute_major, device.compute_minor}},
                      {"multiprocessors", device.multiprocessors},
                      {"granularity_bytes", device.granularity_bytes},
                      {"recommended_granularity_bytes", device.recommended_granularity_bytes}};
  Json& attributes = report["device"]["attributes"];
  for (const int which : {102, 103, 107, 110, 124, 128, 134, 141, 142, 144, 145}) {
    attributes[std::to_string(which)] = attribute(session, which);
  }
  report["cu_get_proc_address_gives_exported_symbols"] =
      reinterpret_cast<void*>(driver.cuMemCreate) == driver.find("cuMemCreate") &&
      reinterpret_cast<void*>(driver.cuMemAlloc) == driver.find("cuMemAlloc_v2");
  report["simulated"] = device.name.starts_with("Spillway simulated");
  report["work"] = session.has_kernels() ? "kernels" : "the driver's own fills and copies";
  return report;
}

Json check_aliasing(Session& session) {
  const Driver& driver = session.driver();
  const size_t bytes = session.granule();
  const PhysicalHandle handle = require(PhysicalHandle::create(driver, session.device(), bytes));
  const Mapped one(session, {&handle});
  const Mapped two(session, {&handle});
  const DeviceBlock out = require(DeviceBlock::allocate(driver, bytes));
  const Event written = require(Event::create(driver));

  size_t same_stream = 0;
  size_t across_streams = 0;
  size_t shared_edge = 0;
  for (int i = 0; i < kRounds; ++i) {
    session.fill(one.base(), bytes, pattern(i), session.stream(0));
    session.copy(out.base(), two.base(), bytes, session.stream(0));
    same_stream += session.mismatches(out.base(), bytes, pattern(i));

    session.fill(two.base(), bytes, pattern(i + 1), session.stream(0));
    require(written.record(session.stream(0)));
    require(written.make_wait(session.stream(1)));
    session.copy(out.base(), one.base(), bytes, session.stream(1));
    across_streams += session.mismatches(out.base(), bytes, pattern(i + 1));

    // Two blocks of one page in two views, written at the same time; they part at a line of 512 bytes, not of
    // a page.
    const size_t part = bytes / 2 + 512;
    session.fill(one.base(), part, pattern(i + 2), session.stream(0));
    session.fill(two.base() + part, bytes - part, pattern(i + 3), session.stream(1));
    shared_edge += session.mismatches(two.base(), part, pattern(i + 2));
    shared_edge += session.mismatches(one.base() + part, bytes - part, pattern(i + 3));
  }
  return {{"rounds", kRounds},
          {"words_per_round", bytes / sizeof(uint32_t)},
          {"wrong_words_next_launch_same_stream", same_stream},
          {"wrong_words_across_streams_by_event", across_streams},
          {"wrong_words_shared_edge", shared_edge}};
}

Json check_remap(Session& session) {
  const Driver& driver = session.driver();
  const size_t bytes = size_t{64} << 20;
  const PhysicalHandle device = require(PhysicalHandle::create(driver, session.device(), bytes));
  const PhysicalHandle host = host_handle(session, bytes);
  const Mapped alias(session, {&host});
  const DeviceBlock out = require(DeviceBlock::allocate(driver, bytes));
  Json report;
  {
    Mapped user(session, {&device});
    session.fill(user.base(), bytes, pattern(7), session.stream(0));
    session.check(driver.cuMemcpyDtoDAsync(alias.base(), user.base(), bytes, session.stream(0)),
                  "cuMemcpyDtoDAsync");
    session.wait();
    report["swap_ns"] = time_ns([&] {
      require(unmap(driver, user.base(), bytes));
      require(map(driver, user.base(), host));
      require(set_access(driver, user.base(), bytes, session.device()));
    });
    session.copy(out.base(), user.base(), bytes, session.stream(0));
    report["wrong_words_after_swap"] = session.mismatches(out.base(), bytes, pattern(7));
    report["pointer_after_swap"] = pointer_answers(session, user.base());
    const uint64_t read_ns = median_ns(5, [&] {
      session.copy(out.base(), user.base(), bytes, session.stream(0));
      session.wait();
    });
    const uint64_t write_ns = median_ns(5, [&] {
      session.copy(user.base(), out.base(), bytes, session.stream(0));
      session.wait();
    });
    report["device_reads_host_gb_per_s"] = gigabytes_per_second(bytes, read_ns);
    report["device_writes_host_gb_per_s"] = gigabytes_per_second(bytes, write_ns);
  }
  const Mapped mixed(session, {&device, &host});
  session.fill(mixed.base(), mixed.bytes(), pattern(9), session.stream(0));
  std::vector<uint32_t> words(mixed.bytes() / sizeof(uint32_t));
  session.wait();
  const CUresult spanning = driver.cuMemcpyDtoH(words.data(), mixed.base(), mixed.bytes());
  report["one_copy_over_device_and_host"] = session.answer(spanning, "cuMemcpyDtoH");
  return report;
}

Json check_answers(Session& session) {
  const Driver& driver = session.driver();
  const size_t bytes = session.granule();
  Json report;
  const size_t before = session.free_bytes();
  const PhysicalHandle handle = require(PhysicalHandle::create(driver, session.device(), bytes * 2));
  report["mem_get_info_drop_after_create_bytes"] =
      static_cast<int64_t>(before) - static_cast<int64_t>(session.free_bytes());
  report["created_bytes"] = bytes * 2;
  {
    const Mapped view(session, {&handle});
    report["vmm_pointer"] = pointer_answers(session, view.base());
  }
  const AddressRange range = require(AddressRange::reserve(driver, bytes));
  const CUresult offset = driver.cuMemMap(range.base(), bytes, bytes, handle.get(), 0);
  report["mem_map_with_offset"] =
      offset == CUDA_SUCCESS ? "accepted" : driver.check(offset, "cuMemMap").text();
  if (offset == CUDA_SUCCESS) require(unmap(driver, range.base(), bytes));
  const DeviceBlock block = require(DeviceBlock::allocate(driver, bytes));
  report["mem_alloc_pointer"] = pointer_answers(session, block.base());
  const HostBlock host(session, bytes);
  report["host_alloc_pointer"] = pointer_answers(session, reinterpret_cast<CUdeviceptr>(host.data()));
  return report;
}

Json measure_copies(Session& session) {
  const Driver& driver = session.driver();
  const size_t bytes = session.options().copy_bytes;
  const DeviceBlock device = require(DeviceBlock::allocate(driver, bytes));
  const HostBlock host(session, bytes);
  const auto rate = [&](auto&& enqueue) {
    return gigabytes_per_second(bytes, median_ns(5, [&] {
                                  enqueue();
                                  session.wait();
                                }));
  };
  const CUstream stream = session.stream(0);
  return {{"bytes", bytes},
          {"host_to_device_gb_per_s", rate([&] {
             session.check(driver.cuMemcpyHtoDAsync(device.base(), host.data(), bytes, stream),
                           "cuMemcpyHtoDAsync");
           })},
          {"device_to_host_gb_per_s", rate([&] {
             session.check(driver.cuMemcpyDtoHAsync(host.data(), device.base(), bytes, stream),
                           "cuMemcpyDtoHAsync");
           })}};
}

}  // namespace spillway::probe
