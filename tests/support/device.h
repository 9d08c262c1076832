// The device that tests of the allocator and of spilling run on: the simulated driver, freshly configured,
// with its controls and race detector; or a real one, where the controls are absent and only what needs none
// of them is checked.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "allocator/arena.h"
#include "driver/driver.h"
#include "sim/cuda/sim_control.h"

namespace spillway::test {

// Holds a stream up while it is closed, see Device::hold.
class Gate {
 public:
  explicit Gate(uint32_t* word) : word_(word) {}
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() const { std::atomic_ref(*word_).store(1); }

 private:
  uint32_t* word_;
};

class Device {
 public:
  explicit Device(const std::string& configuration = "capacity:1GiB")
      : capacity_bytes_(capacity_of(configuration)),
        has_vmm_(configuration.find("vmm:off") == std::string::npos) {
    Result<std::shared_ptr<const Driver>> opened = Driver::open();
    if (!opened.ok()) throw std::runtime_error(opened.status().text());
    driver = opened.value();
    bind(graph_instantiate, "cuGraphInstantiateWithFlags");
    bind(graph_launch, "cuGraphLaunch");
    bind(graph_exec_destroy, "cuGraphExecDestroy");
    bind(configure, "spwSimConfigure");
    bind(touch_ranges, "spwSimTouch");
    bind(report_count, "spwSimReportCount");
    bind(report, "spwSimReport");
    bind(calls, "spwSimCalls");
    bind(total_calls, "spwSimTotalCalls");
    bind(host_waits, "spwSimHostWaits");
    bind(stream_waits, "spwSimStreamWaits");
    bind(inject_fault, "spwSimInjectFault");
    bind(clear_faults, "spwSimClearFaults");
    bind(live_handles, "spwSimLiveHandles");
    bind(live_mappings, "spwSimLiveMappings");
    bind(note_alloc, "spwSimNoteAlloc");
    bind(note_free, "spwSimNoteFree");
    if (simulated() && configure(configuration.c_str()) != CUDA_SUCCESS) {
      throw std::runtime_error("the simulated device refused: " + configuration);
    }
    CUdevice device = 0;
    driver->cuDeviceGet(&device, 0);
    const Status retained =
        driver->check(driver->cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    if (!retained.ok()) throw std::runtime_error(retained.text());
    if (!simulated()) keep_context();
    driver->cuCtxSetCurrent(context);
  }
  ~Device() {
    driver->cuCtxSynchronize();
    for (uint32_t* gate : gates_) driver->cuMemFreeHost(gate);
    for (CUstream stream : streams_) driver->cuStreamDestroy(stream);
    driver->cuCtxSetCurrent(nullptr);
    driver->cuDevicePrimaryCtxRelease(0);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  bool simulated() const { return configure != nullptr; }

  // What a device without controls has too much of is kept from the arena: its limit is the capacity that the
  // configuration names.
  std::unique_ptr<Arena> arena(ArenaOptions options = {}) const {
    if (!simulated()) options.limit_bytes = std::min(options.limit_bytes, capacity_bytes_);
    if (!simulated()) options.use_vmm = options.use_vmm && has_vmm_;
    Result<std::unique_ptr<Arena>> arena = Arena::create(driver, 0, options);
    if (!arena.ok()) throw std::runtime_error(arena.status().text());
    return std::move(arena.value());
  }
  CUstream stream() {
    CUstream created = nullptr;
    driver->cuStreamCreate(&created, CU_STREAM_NON_BLOCKING);
    streams_.push_back(created);
    return created;
  }
  void destroy(CUstream stream) {
    std::erase(streams_, stream);
    EXPECT_EQ(driver->cuStreamDestroy(stream), CUDA_SUCCESS);
  }
  // Work on the device that reads and writes the whole range.
  void touch(CUstream on, void* pointer, size_t bytes) const {
    if (!simulated()) {
      touch_pages(on, reinterpret_cast<CUdeviceptr>(pointer), bytes);
      return;
    }
    const SpwSimRange range{reinterpret_cast<uint64_t>(pointer), bytes, 0, 0};
    EXPECT_EQ(touch_ranges(on, &range, 1, SPW_SIM_READ_WRITE), CUDA_SUCCESS);
  }
  // A little of each page: the simulated device without controls has all that is written.
  void touch_pages(CUstream on, CUdeviceptr start, size_t bytes) const {
    constexpr size_t kPiece = 4096;
    for (size_t at = 0; at < bytes; at += kPageBytes)
      driver->cuMemsetD8Async(start + at, 0x5a, std::min(kPiece, bytes - at), on);
    const size_t last = std::min(kPiece, bytes);
    driver->cuMemsetD8Async(start + bytes - last, 0x5a, last, on);
  }
  // What the stream is told from now on does not begin before the gate opens: on whatever device, the stream
  // has work. An arena waits for its streams as it ends: the gate is to end before that.
  [[nodiscard]] Gate hold(CUstream stream) {
    using WaitValue = decltype(&cuStreamWaitValue32_v2);
    const auto wait_value = reinterpret_cast<WaitValue>(driver->find("cuStreamWaitValue32_v2"));
    void* word = nullptr;
    CUdeviceptr address = 0;
    if (driver->cuMemHostAlloc(&word, sizeof(uint32_t), CU_MEMHOSTALLOC_DEVICEMAP) != CUDA_SUCCESS) {
      throw std::runtime_error("no pinned memory for a gate");
    }
    gates_.push_back(static_cast<uint32_t*>(word));
    *gates_.back() = 0;
    EXPECT_EQ(driver->cuMemHostGetDevicePointer(&address, word, 0), CUDA_SUCCESS);
    EXPECT_EQ(wait_value(stream, address, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
    return Gate(gates_.back());
  }
  // Returns the reserve that leaves so much of the device.
  uint64_t reserve_but(uint64_t bytes) const {
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(driver->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return total - bytes;
  }
  // What `later` does from now on comes after what `earlier` has been told so far.
  void order(CUstream earlier, CUstream later) const {
    CUevent edge = nullptr;
    EXPECT_EQ(driver->cuEventCreate(&edge, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EXPECT_EQ(driver->cuEventRecord(edge, earlier), CUDA_SUCCESS);
    EXPECT_EQ(driver->cuStreamWaitEvent(later, edge, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver->cuEventDestroy(edge), CUDA_SUCCESS);
  }
  void begin_capture(CUstream stream, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) const {
    EXPECT_EQ(driver->cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
  }
  // Returns the graph, which is the caller's. That there is one shows that nothing had ended the capture
  // before.
  CUgraph end_capture(CUstream stream) const {
    CUgraph graph = nullptr;
    EXPECT_EQ(driver->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_NE(graph, nullptr);
    return graph;
  }
  void discard_capture(CUstream stream) const {
    const CUgraph graph = end_capture(stream);
    if (graph != nullptr) {
      EXPECT_EQ(driver->cuGraphDestroy(graph), CUDA_SUCCESS);
    }
  }
  // Returns what the race detector has to say; empty is good.
  std::string reports() const {
    std::string all;
    for (size_t i = 0; simulated() && i < report_count() && i < 5; ++i) all += std::string(report(i)) + "\n";
    return all;
  }

  std::shared_ptr<const Driver> driver;
  CUcontext context = nullptr;
  // Graphs, which the allocator does not use; null where the driver lacks them.
  decltype(&cuGraphInstantiateWithFlags) graph_instantiate = nullptr;
  decltype(&cuGraphLaunch) graph_launch = nullptr;
  decltype(&cuGraphExecDestroy) graph_exec_destroy = nullptr;
  decltype(&spwSimConfigure) configure = nullptr;
  decltype(&spwSimTouch) touch_ranges = nullptr;
  decltype(&spwSimReportCount) report_count = nullptr;
  decltype(&spwSimReport) report = nullptr;
  decltype(&spwSimCalls) calls = nullptr;
  decltype(&spwSimTotalCalls) total_calls = nullptr;
  decltype(&spwSimHostWaits) host_waits = nullptr;
  decltype(&spwSimStreamWaits) stream_waits = nullptr;
  decltype(&spwSimInjectFault) inject_fault = nullptr;
  decltype(&spwSimClearFaults) clear_faults = nullptr;
  decltype(&spwSimLiveHandles) live_handles = nullptr;
  decltype(&spwSimLiveMappings) live_mappings = nullptr;
  decltype(&spwSimNoteAlloc) note_alloc = nullptr;
  decltype(&spwSimNoteFree) note_free = nullptr;

 private:
  template <typename Function>
  void bind(Function& function, const char* name) {
    function = reinterpret_cast<Function>(driver->find(name));
  }

  // A GPU takes half a second and more to make a context: the program keeps its first one to its end.
  void keep_context() const {
    CUcontext kept = nullptr;
    [[maybe_unused]] static const CUresult once = driver->cuDevicePrimaryCtxRetain(&kept, 0);
  }

  // Returns the device memory that the configuration names, or all there is.
  static uint64_t capacity_of(const std::string& configuration) {
    const std::string key = "capacity:";
    const size_t at = configuration.find(key);
    if (at == std::string::npos) return UINT64_MAX;
    size_t digits = 0;
    const uint64_t count = std::stoull(configuration.substr(at + key.size()), &digits);
    const std::string unit = configuration.substr(at + key.size() + digits, 3);
    return count << (unit == "GiB" ? 30 : 20);
  }

  uint64_t capacity_bytes_;
  bool has_vmm_;
  std::vector<uint32_t*> gates_;
  std::vector<CUstream> streams_;
};

inline int64_t reserved(const Arena& arena) {
  return arena.stats().reserved_bytes.all.current;
}
inline void* must_allocate(Arena& arena, size_t bytes, CUstream stream) {
  void* pointer = nullptr;
  const Status status = arena.allocate(bytes, stream, &pointer);
  EXPECT_TRUE(status.ok()) << status.text();
  return pointer;
}

#define SPW_EXPECT_OK(expression)                    \
  do {                                               \
    const ::spillway::Status checked = (expression); \
    EXPECT_TRUE(checked.ok()) << checked.text();     \
  } while (false)

}  // namespace spillway::test
