// Saves what a pool holds, and puts it back: what the graph trees of torch.compile ask for before they record
// or warm up another function after replays.

#include "allocator.h"
#include "calls.h"

#include <utility>

namespace spillway_torch {
namespace {

struct PoolState final : caching::AllocatorState {
  PoolState(DeviceIndex its_device, MempoolId_t its_pool) : device(its_device), pool(its_pool) {
    check(spw_pool_checkpoint(device, abi(pool), &blocks));
  }
  ~PoolState() override { spw_pool_state_free(blocks); }
  PoolState(const PoolState&) = delete;
  PoolState& operator=(const PoolState&) = delete;

  const DeviceIndex device;
  const MempoolId_t pool;
  spw_pool_state* blocks = nullptr;
};

struct Change {
  spw_block block;
  spw_stream stream;
};

std::vector<Change> restore(const PoolState& state) {
  std::vector<Change> changes;
  const spw_restore_visitor note = [](const spw_block* block, spw_stream stream, void* context) {
    static_cast<std::vector<Change>*>(context)->push_back({*block, stream});
  };
  check(spw_pool_restore(state.blocks, note, &changes));
  return changes;
}

}  // namespace

std::shared_ptr<caching::AllocatorState> Allocator::getCheckpointState(DeviceIndex device, MempoolId_t id) {
  check_device(device);
  return std::make_shared<PoolState>(device, id);
}

caching::CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex device,
                                                           std::shared_ptr<caching::AllocatorState> state) {
  const auto saved = std::dynamic_pointer_cast<PoolState>(state);
  TORCH_CHECK(saved != nullptr, "spillway: this is no state of a pool of Spillway's");
  TORCH_CHECK(saved->device == device, "spillway: the state is of a pool of device ",
              static_cast<int>(saved->device), ", not ", static_cast<int>(device));
  caching::CheckpointDelta delta;
  for (const auto& [block, stream] : restore(*saved)) {
    auto* const pointer = reinterpret_cast<void*>(block.address);
    const History::Block named{device, pointer, block.requested_bytes, stream, saved->pool};
    if (block.state == SPW_BLOCK_ALLOCATED) {
      delta.dataptrs_allocd.emplace_back(pointer, pointer, raw_deleter(), c10::Device(c10::kCUDA, device));
      if (!history_.listens()) continue;
      history_.allocated(named, history_.gather(recording::RecordContext::STATE));
    } else {
      delta.ptrs_freed.push_back(pointer);
      if (!history_.listens()) continue;
      history_.free_requested(named, history_.gather(recording::RecordContext::ALL));
      history_.complete_frees();
    }
  }
  return delta;
}

}  // namespace spillway_torch
