#include "offload/host_overflow.h"

#include <algorithm>
#include <utility>

#include "allocator/units.h"
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/first_touch.h"
#include "stats/host_memory.h"

namespace spillway {

HostOverflow::HostOverflow(const Driver& driver, Arena& arena, PinnedArena& pinned,
                           const HostOverflowOptions& options)
    : driver_(driver), arena_(arena), pinned_(pinned), options_(options), events_(driver) {
  Result<DeviceProperties> properties = query_device(driver, arena.device());
  if (!properties.ok() || options.memory == OverflowMemory::kPinned) return;
  has_host_ = properties->host_vmm > 0;
  // Drivers before 595 may end the process there, so only who asks for it gets it.
  const bool is_asked_for = !has_host_ && options.memory == OverflowMemory::kVmm;
  if (is_asked_for && properties->host_numa_vmm > 0 && has_processors(properties->host_numa_id))
    node_ = properties->host_numa_id;
}

std::shared_ptr<HostOverflow> HostOverflow::create(const Driver& driver, Arena& arena, PinnedArena& pinned,
                                                   const HostOverflowOptions& options) {
  return std::shared_ptr<HostOverflow>(new HostOverflow(driver, arena, pinned, options));
}

// What is still used and cannot be waited for stays mapped.
HostOverflow::~HostOverflow() {
  const RelaxedCapture relaxed(driver_);
  for (Freed& freed : freed_) {
    const bool is_done = std::all_of(freed.marks.begin(), freed.marks.end(),
                                     [](const Event& mark) { return mark.synchronize().ok(); });
    if (is_done) {
      give_back(std::move(freed.block));
    } else {
      freed.block.range.leave_to_driver();
    }
  }
}

std::shared_ptr<const HostPlacement> HostOverflow::placement() {
  auto made = std::make_shared<HostPlacement>();
  made->place = [self = shared_from_this()](uint64_t bytes, CUstream) { return self->place(bytes); };
  made->release = [self = shared_from_this()](void* block, const std::vector<CUstream>& streams) {
    self->release(block, streams);
  };
  return made;
}

// ---- Place

Result<PhysicalHandle> HostOverflow::create_handle(uint64_t bytes) const {
  if (has_host_) return PhysicalHandle::create_on_host(driver_, bytes);
  if (node_ >= 0) return PhysicalHandle::create_on_node(driver_, node_, bytes);
  return Status::unsupported("the driver makes no memory of the host");
}

Result<HostOverflow::Block> HostOverflow::map_host_memory(uint64_t bytes, uint64_t* va) {
  const uint64_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  Result<PhysicalHandle> handle = create_handle(rounded);
  if (!handle.ok()) return handle.take_status();
  Result<MappedRange> range = MappedRange::reserve(driver_, rounded);
  if (!range.ok()) return range.take_status();
  if (Status status = range->append(handle.value()); !status.ok()) return status;
  const std::vector<int> devices = arena_.devices();
  Status status = set_access(driver_, range->base(), rounded, devices.data(), devices.size());
  if (!status.ok()) return status;
  *va = range->base();
  Block block;
  block.bytes = rounded;
  block.range = std::move(range.value());
  return block;
}

Result<HostOverflow::Block> HostOverflow::make(uint64_t bytes, uint64_t* va) {
  Result<Block> mapped = map_host_memory(bytes, va);
  // A container may forbid what the attributes promise.
  const bool may_pin =
      options_.memory != OverflowMemory::kVmm && driver_.cuMemHostGetDevicePointer != nullptr;
  return mapped.ok() || !may_pin ? std::move(mapped) : pin_host_memory(bytes, va);
}

Result<HostOverflow::Block> HostOverflow::pin_host_memory(uint64_t bytes, uint64_t* va) {
  Result<void*> pinned = pinned_.allocate(bytes);
  if (!pinned.ok()) return pinned.take_status();
  CUdeviceptr pointer = 0;
  Status status = driver_.check(driver_.cuMemHostGetDevicePointer(&pointer, pinned.value(), 0),
                                "cuMemHostGetDevicePointer");
  if (!status.ok()) {
    pinned_.give_back(pinned.value(), bytes);
    return status;
  }
  *va = pointer;
  Block block;
  block.bytes = bytes;
  block.pinned = pinned.value();
  return block;
}

bool HostOverflow::wait_for_oldest() {
  std::vector<CUevent> events;
  {
    const Lock lock(mutex_);
    if (freed_.empty()) return false;
    for (const Event& mark : freed_.front().marks) events.push_back(mark.get());
  }
  // Kept for reuse by whoever sees them reached first: waiting for one is always legal.
  const RelaxedCapture relaxed(driver_);
  return std::all_of(events.begin(), events.end(),
                     [&](CUevent event) { return driver_.cuEventSynchronize(event) == CUDA_SUCCESS; });
}

bool HostOverflow::claim(uint64_t bytes) {
  std::vector<Block> finished;
  bool is_claimed = false;
  {
    const Lock lock(mutex_);
    finished = take_finished();
    is_claimed = bytes <= options_.most_bytes - std::min(held_bytes_, options_.most_bytes);
    if (is_claimed) held_bytes_ += bytes;
  }
  for (Block& block : finished) give_back(std::move(block));
  return is_claimed;
}

void* HostOverflow::place(uint64_t bytes) {
  if (bytes < options_.least_block_bytes || bytes > options_.most_bytes) return nullptr;
  while (!claim(bytes)) {
    if (!wait_for_oldest()) return nullptr;
  }
  const auto refuse = [&]() -> void* {
    const Lock lock(mutex_);
    held_bytes_ -= bytes;
    return nullptr;
  };
  // The host keeps half of what it has left.
  if (bytes > read_host_memory().available_bytes / 2) return refuse();
  const ScopedContext context(driver_, arena_.context());
  // Creating, mapping and pinning would end another stream's capture.
  const RelaxedCapture relaxed(driver_);
  uint64_t va = 0;
  Result<Block> made = make(bytes, &va);
  if (!made.ok()) return refuse();
  const Lock lock(mutex_);
  held_bytes_ += made->bytes - bytes;
  blocks_[va] = std::move(made.value());
  return reinterpret_cast<void*>(va);
}

// ---- Release

void HostOverflow::release(void* pointer, const std::vector<CUstream>& streams) {
  Freed freed;
  {
    const Lock lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uint64_t>(pointer));
    if (found == blocks_.end()) return;
    freed.block = std::move(found->second);
    blocks_.erase(found);
  }
  const ScopedContext context(driver_, arena_.context());
  const RelaxedCapture relaxed(driver_);
  bool is_marked = context.status().ok();
  for (const CUstream stream : streams) {
    if (is_capturing(driver_, stream)) {
      freed.block.range.leave_to_driver();  // a graph may use it at any time
      return;
    }
    Result<Event> mark = events_.acquire();
    is_marked = is_marked && mark.ok() && mark->record(stream).ok();
    if (mark.ok()) freed.marks.push_back(std::move(mark.value()));
  }
  // What cannot be marked is waited for.
  if (!is_marked) {
    if (driver_.cuCtxSynchronize() != CUDA_SUCCESS) {
      freed.block.range.leave_to_driver();
      return;
    }
    freed.marks.clear();
  }
  std::vector<Block> finished;
  {
    const Lock lock(mutex_);
    freed_.push_back(std::move(freed));
    finished = take_finished();
  }
  for (Block& block : finished) give_back(std::move(block));
}

std::vector<HostOverflow::Block> HostOverflow::take_finished() {
  const RelaxedCapture relaxed(driver_);
  std::vector<Block> finished;
  for (auto freed = freed_.begin(); freed != freed_.end();) {
    const bool is_done = std::all_of(freed->marks.begin(), freed->marks.end(), [](const Event& mark) {
      const Result<bool> completed = mark.completed();
      return completed.ok() && completed.value();
    });
    if (!is_done) {
      ++freed;
      continue;
    }
    for (Event& mark : freed->marks) events_.give_back(std::move(mark));
    held_bytes_ -= freed->block.bytes;
    finished.push_back(std::move(freed->block));
    freed = freed_.erase(freed);
  }
  return finished;
}

void HostOverflow::give_back(Block block) {
  if (block.pinned != nullptr) pinned_.give_back(block.pinned, block.bytes);
  // The range unmaps itself.
}

uint64_t HostOverflow::held_bytes() const {
  const Lock lock(mutex_);
  return held_bytes_;
}

}  // namespace spillway
