#include "bench/driver_probe/session.h"

#include <algorithm>

#include "bench/driver_probe/kernels.h"

namespace spillway::probe {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kBlocks = 1024;
constexpr size_t kScratchBytes = size_t{4} << 20;

}  // namespace

Session::Session(const Options& options) : options_(options), driver_(require(Driver::open())) {
  properties_ = require(query_device(*driver_, options.device));
  CUcontext context = nullptr;
  check(driver_->cuDevicePrimaryCtxRetain(&context, properties_.device), "cuDevicePrimaryCtxRetain");
  retained_ = true;
  check(driver_->cuCtxSetCurrent(context), "cuCtxSetCurrent");
  for (CUstream& stream : streams_) {
    check(driver_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  scratch_ = require(DeviceBlock::allocate(*driver_, kScratchBytes));
  load_kernels();
}

Session::~Session() {
  driver_->cuCtxSynchronize();
  scratch_.reset();
  if (module_ != nullptr) driver_->cuModuleUnload(module_);
  for (const CUstream stream : streams_) {
    if (stream != nullptr) driver_->cuStreamDestroy(stream);
  }
  if (retained_) driver_->cuDevicePrimaryCtxRelease(properties_.device);
}

void Session::load_kernels() {
  if (driver_->cuModuleLoadData == nullptr || driver_->cuModuleGetFunction == nullptr ||
      driver_->cuModuleUnload == nullptr || driver_->cuLaunchKernel == nullptr) {
    return;
  }
  if (driver_->cuModuleLoadData(&module_, kKernels) != CUDA_SUCCESS) {
    module_ = nullptr;
    return;
  }
  check(driver_->cuModuleGetFunction(&fill_, module_, "spw_fill"), "cuModuleGetFunction");
  check(driver_->cuModuleGetFunction(&copy_, module_, "spw_copy"), "cuModuleGetFunction");
  CUfunction spin = nullptr;
  check(driver_->cuModuleGetFunction(&spin, module_, "spw_spin"), "cuModuleGetFunction");
  if (kernels_compute()) spin_ = spin;
}

// A simulated device accepts every kernel and runs none.
bool Session::kernels_compute() const {
  constexpr uint32_t kMark = 0x5A5A5A5A;
  check(driver_->cuMemsetD8Async(scratch_.base(), 0, scratch_.bytes(), streams_[0]), "cuMemsetD8Async");
  launch_fill(scratch_.base(), scratch_.bytes(), kMark, streams_[0]);
  return mismatches(scratch_.base(), scratch_.bytes(), kMark) == 0;
}

void Session::launch(CUfunction function, unsigned blocks, void** arguments, CUstream stream) const {
  const unsigned threads = blocks == 1 ? 1 : kThreads;
  check(driver_->cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr),
        "cuLaunchKernel");
}

void Session::launch_fill(CUdeviceptr dst, size_t bytes, uint32_t value, CUstream stream) const {
  uint64_t words = bytes / sizeof(uint32_t);
  void* arguments[] = {&dst, &words, &value};
  launch(fill_, kBlocks, arguments, stream);
}

void Session::occupy(unsigned milliseconds) {
  if (has_kernels()) {
    uint64_t nanoseconds = uint64_t{milliseconds} * 1000000;
    void* arguments[] = {&nanoseconds};
    launch(spin_, 1, arguments, streams_[0]);
    return;
  }
  for (int i = 0; i < 4; ++i) fill(scratch_.base(), scratch_.bytes(), 0, streams_[0]);
}

void Session::fill(CUdeviceptr dst, size_t bytes, uint32_t value, CUstream stream) const {
  if (has_kernels()) {
    launch_fill(dst, bytes, value, stream);
    return;
  }
  // Repeats the low byte; callers that check use values whose bytes are equal.
  check(driver_->cuMemsetD8Async(dst, static_cast<unsigned char>(value), bytes, stream), "cuMemsetD8Async");
}

void Session::copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) const {
  if (has_kernels()) {
    uint64_t quads = bytes / 16;
    void* arguments[] = {&dst, &src, &quads};
    launch(copy_, kBlocks, arguments, stream);
    return;
  }
  check(driver_->cuMemcpyDtoDAsync(dst, src, bytes, stream), "cuMemcpyDtoDAsync");
}

size_t Session::free_bytes() const {
  size_t free = 0;
  size_t total = 0;
  check(driver_->cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return free;
}

size_t Session::mismatches(CUdeviceptr src, size_t bytes, uint32_t value) const {
  wait();
  std::vector<uint32_t> host(bytes / sizeof(uint32_t));
  check(driver_->cuMemcpyDtoH(host.data(), src, bytes), "cuMemcpyDtoH");
  return host.size() - static_cast<size_t>(std::count(host.begin(), host.end(), value));
}

Mapped::Mapped(const Session& session, const std::vector<const PhysicalHandle*>& handles)
    : driver_(&session.driver()) {
  size_t bytes = 0;
  for (const PhysicalHandle* handle : handles) bytes += handle->bytes();
  range_ = require(AddressRange::reserve(*driver_, bytes));
  for (const PhysicalHandle* handle : handles) {
    require(map(*driver_, range_.base() + mapped_, *handle));
    mapped_ += handle->bytes();
  }
  const Status granted = set_access(*driver_, range_.base(), bytes, session.device());
  if (!granted.ok()) driver_->cuMemUnmap(range_.base(), mapped_);
  require(granted);
}

}  // namespace spillway::probe
