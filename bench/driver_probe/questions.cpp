// Questions that may end the process that asks them; each is asked in one of its own.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "bench/driver_probe/sections.h"

namespace spillway::probe {
namespace {

constexpr size_t kHostBytes = size_t{64} << 20;
constexpr unsigned kFewMultiprocessors = 8;

int host_numa_id(const Session& session) {
  int node = -1;
  session.driver().cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, session.properties().device);
  return node;
}

class Stream {
 public:
  explicit Stream(const Session& session) : driver_(&session.driver()) {
    session.check(driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  ~Stream() { driver_->cuStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream get() const { return stream_; }

 private:
  const Driver* driver_;
  CUstream stream_ = nullptr;
};

Json id_of(const Session& session, CUstream stream) {
  const Driver& driver = session.driver();
  if (driver.cuStreamGetId == nullptr) return "this driver has no cuStreamGetId";
  unsigned long long id = 0;
  const CUresult result = driver.cuStreamGetId(stream, &id);
  if (result != CUDA_SUCCESS) return driver.check(result, "cuStreamGetId").text();
  return id;
}

CUstream destroyed_stream(const Session& session, Json& report) {
  const Stream stream(session);
  session.check(session.driver().cuMemsetD8Async(session.scratch(), 0, 4096, stream.get()),
                "cuMemsetD8Async");
  session.wait();
  report["id_before"] = id_of(session, stream.get());
  return stream.get();
}

// Finds out what a question costs the capture of the stream that it is asked of, or that goes on meanwhile.
template <typename Ask>
Json ask_under_capture(const Session& session, const char* call, CUstreamCaptureMode mode, Ask ask) {
  const Driver& driver = session.driver();
  const Stream stream(session);
  session.check(driver.cuStreamBeginCapture(stream.get(), mode), "cuStreamBeginCapture");
  const CUresult result = ask(stream.get());
  CUgraph graph = nullptr;
  const bool survives = driver.cuStreamEndCapture(stream.get(), &graph) == CUDA_SUCCESS;
  if (graph != nullptr) session.check(driver.cuGraphDestroy(graph), "cuGraphDestroy");
  return {{"answers", session.answer(result, call)}, {"capture_survives", survives}};
}

// A green context of few multiprocessors and a stream of it; streams of it end with it.
class Green {
 public:
  explicit Green(const Session& session) : session_(session) {
    CUdevResource all = {}, some = {}, rest = {};
    const auto get = session.entry<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource");
    session.check(get(session.properties().device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
    unsigned groups = 1;
    const auto split = session.entry<PFN_cuDevSmResourceSplitByCount_v12040>("cuDevSmResourceSplitByCount");
    session.check(split(&some, &groups, &all, &rest, 0, kFewMultiprocessors), "cuDevSmResourceSplitByCount");
    CUdevResourceDesc described = nullptr;
    const auto describe = session.entry<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc");
    session.check(describe(&described, &some, 1), "cuDevResourceGenerateDesc");
    const auto create = session.entry<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate");
    session.check(create(&context_, described, session.properties().device, CU_GREEN_CTX_DEFAULT_STREAM),
                  "cuGreenCtxCreate");
    const auto stream = session.entry<PFN_cuGreenCtxStreamCreate_v12050>("cuGreenCtxStreamCreate");
    session.check(stream(&stream_, context_, CU_STREAM_NON_BLOCKING, 0), "cuGreenCtxStreamCreate");
    multiprocessors_ = some.sm.smCount;
  }
  Green(const Green&) = delete;
  Green& operator=(const Green&) = delete;
  ~Green() {
    session_.driver().cuStreamDestroy(stream_);
    session_.entry<PFN_cuGreenCtxDestroy_v12040>("cuGreenCtxDestroy")(context_);
  }
  CUstream stream() const { return stream_; }
  unsigned multiprocessors() const { return multiprocessors_; }

 private:
  const Session& session_;
  CUgreenCtx context_ = nullptr;
  CUstream stream_ = nullptr;
  unsigned multiprocessors_ = 0;
};

Json green_streams(const Session& session, const Green& green) {
  const Driver& driver = session.driver();
  Json report = {{"created", true},
                 {"multiprocessors", green.multiprocessors()},
                 {"id", id_of(session, green.stream())}};
  CUcontext primary = nullptr, of_stream = nullptr;
  session.check(driver.cuCtxGetCurrent(&primary), "cuCtxGetCurrent");
  if (driver.cuStreamGetCtx != nullptr) {
    const CUresult result = driver.cuStreamGetCtx(green.stream(), &of_stream);
    report["cuStreamGetCtx"] = session.answer(result, "cuStreamGetCtx");
    report["names_the_primary_context"] = of_stream == primary;
  }
  const Event event = require(Event::create(driver));
  report["event_of_the_primary_context"] =
      session.answer(driver.cuEventRecord(event.get(), green.stream()), "cuEventRecord");
  report["wait_in_a_stream_of_the_primary"] =
      session.answer(driver.cuStreamWaitEvent(session.stream(0), event.get(), 0), "cuStreamWaitEvent");
  return report;
}

// Memory that was made in the primary context, written and read by work of the green one.
Json green_memory(const Session& session, const Green& green) {
  const Driver& driver = session.driver();
  const size_t bytes = session.granule();
  const PhysicalHandle handle = require(PhysicalHandle::create(driver, session.device(), bytes));
  const Mapped mapped(session, {&handle});
  const DeviceBlock plain = require(DeviceBlock::allocate(driver, bytes));
  constexpr uint32_t kMark = 0x3C3C3C3C;
  Json report;
  report["fill_mapped_memory"] = session.answer(
      driver.cuMemsetD8Async(mapped.base(), kMark & 0xFF, bytes, green.stream()), "cuMemsetD8Async");
  report["copy_to_plain_memory"] = session.answer(
      driver.cuMemcpyDtoDAsync(plain.base(), mapped.base(), bytes, green.stream()), "cuMemcpyDtoDAsync");
  report["wait"] = session.answer(driver.cuStreamSynchronize(green.stream()), "cuStreamSynchronize");
  report["wrong_words"] = session.mismatches(plain.base(), bytes, kMark);
  return report;
}

}  // namespace

Json ask_host_memory(const Session& session, std::string_view question) {
  const int node = host_numa_id(session);
  CUmemAllocationProp wanted = {};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = question == "host"        ? CU_MEM_LOCATION_TYPE_HOST
                         : question == "numa_node" ? CU_MEM_LOCATION_TYPE_HOST_NUMA
                                                   : CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  wanted.location.id = question == "numa_node" ? node : 0;
  Json report;
  if (question == "numa_node") report["node"] = node;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = session.driver().cuMemCreate(&handle, kHostBytes, &wanted, 0);
  report["answers"] = session.answer(result, "cuMemCreate");
  if (result == CUDA_SUCCESS) session.driver().cuMemRelease(handle);
  return report;
}

Json ask_captured_stream(const Session& session, std::string_view question) {
  const Driver& driver = session.driver();
  const auto relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (question == "cuStreamGetId") {
    return ask_under_capture(session, "cuStreamGetId", relaxed, [&](CUstream stream) {
      unsigned long long id = 0;
      return driver.cuStreamGetId == nullptr ? CUDA_ERROR_NOT_FOUND : driver.cuStreamGetId(stream, &id);
    });
  }
  if (question == "cuStreamGetCtx") {
    return ask_under_capture(session, "cuStreamGetCtx", relaxed, [&](CUstream stream) {
      CUcontext context = nullptr;
      return driver.cuStreamGetCtx == nullptr ? CUDA_ERROR_NOT_FOUND
                                              : driver.cuStreamGetCtx(stream, &context);
    });
  }
  if (question == "cuStreamIsCapturing") {
    return ask_under_capture(session, "cuStreamIsCapturing", relaxed, [&](CUstream stream) {
      CUstreamCaptureStatus status = {};
      return driver.cuStreamIsCapturing(stream, &status);
    });
  }
  return ask_under_capture(session, "cuMemCreate", CU_STREAM_CAPTURE_MODE_GLOBAL, [&](CUstream) {
    const Result<PhysicalHandle> handle = PhysicalHandle::create(driver, session.device(), session.granule());
    if (!handle.ok()) return CUDA_ERROR_UNKNOWN;
    const Mapped mapped(session, {&handle.value()});
    return CUDA_SUCCESS;
  });
}

Json ask_destroyed_stream(const Session& session, std::string_view question) {
  const Driver& driver = session.driver();
  Json report;
  const CUstream gone = destroyed_stream(session, report);
  if (question == "cuStreamQuery") {
    report["answers"] = session.answer(driver.cuStreamQuery(gone), "cuStreamQuery");
  } else if (question == "cuStreamGetId") {
    report["answers"] = id_of(session, gone);
  } else if (question == "cuStreamGetCtx") {
    CUcontext context = nullptr;
    report["answers"] = driver.cuStreamGetCtx == nullptr
                            ? std::string("this driver has no cuStreamGetCtx")
                            : session.answer(driver.cuStreamGetCtx(gone, &context), "cuStreamGetCtx");
  } else if (question == "cuStreamIsCapturing") {
    CUstreamCaptureStatus status = {};
    report["answers"] = session.answer(driver.cuStreamIsCapturing(gone, &status), "cuStreamIsCapturing");
  } else if (question == "cuEventRecord") {
    const Event event = require(Event::create(driver));
    report["answers"] = session.answer(driver.cuEventRecord(event.get(), gone), "cuEventRecord");
  } else {
    const Stream next(session);
    report["next_has_the_same_handle"] = next.get() == gone;
    report["next_has_another_id"] = id_of(session, next.get()) != report["id_before"];
  }
  return report;
}

Json ask_reset_context(const Session& session, std::string_view question) {
  const Driver& driver = session.driver();
  const CUdevice device = session.properties().device;
  // Without owners, whose ends would be further calls.
  CUstream stream = nullptr;
  CUevent event = nullptr;
  session.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  session.check(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  session.check(driver.cuEventRecord(event, stream), "cuEventRecord");
  session.wait();
  CUcontext before = nullptr, after = nullptr;
  session.check(driver.cuCtxGetCurrent(&before), "cuCtxGetCurrent");
  const auto reset = session.entry<PFN_cuDevicePrimaryCtxReset_v11000>("cuDevicePrimaryCtxReset");
  session.check(reset(device), "cuDevicePrimaryCtxReset");
  if (question == "cuStreamQuery")
    return {{"answers", session.answer(driver.cuStreamQuery(stream), "cuStreamQuery")}};
  if (question == "cuStreamIsCapturing") {
    CUstreamCaptureStatus status = {};
    const CUresult result = driver.cuStreamIsCapturing(CU_STREAM_LEGACY, &status);
    return {{"answers", session.answer(result, "cuStreamIsCapturing")}};
  }
  if (question == "cuEventRecord")
    return {{"answers", session.answer(driver.cuEventRecord(event, stream), "cuEventRecord")}};
  if (question == "cuEventQuery")
    return {{"answers", session.answer(driver.cuEventQuery(event), "cuEventQuery")}};
  if (question == "cuMemCreate") {
    const Result<PhysicalHandle> handle = PhysicalHandle::create(driver, session.device(), session.granule());
    return {{"answers", handle.ok() ? "works" : handle.status().text()}};
  }
  if (question == "next_use")
    session.check(driver.cuDevicePrimaryCtxRetain(&after, device), "cuDevicePrimaryCtxRetain");
  unsigned flags = 0;
  int active = 0;
  session.check(driver.cuDevicePrimaryCtxGetState(device, &flags, &active), "cuDevicePrimaryCtxGetState");
  Json report = {{"active", active != 0}};
  if (question == "state") session.check(driver.cuCtxGetCurrent(&after), "cuCtxGetCurrent");
  report[question == "state" ? "stays_current" : "has_the_same_handle"] = before == after;
  return report;
}

Json ask_green_context(const Session& session, std::string_view question) {
  const Green green(session);
  return question == "streams" ? green_streams(session, green) : green_memory(session, green);
}

}  // namespace spillway::probe
