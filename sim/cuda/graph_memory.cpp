#include "sim/cuda/graph_memory.h"

#include <algorithm>

#include "sim/cuda/call.h"

namespace spillway::sim {
namespace {

Physical& memory_of(State& state, CUdeviceptr start) {
  return *state.memory.find(start)->physical;
}

// After anything that the count of used memory depends on.
void recount(State& state, CUdeviceptr start, GraphBlock& block) {
  const Physical& physical = memory_of(state, start);
  const bool is_used = physical.committed && (block.live || block.graphs != 0);
  if (is_used == block.is_used) return;
  block.is_used = is_used;
  Gauge& used = state.graph_memory.used[static_cast<size_t>(block.device)];
  is_used ? used.add(physical.bytes) : used.take(physical.bytes);
}

void decommit(State& state, CUdeviceptr start, GraphBlock& block) {
  Physical& physical = memory_of(state, start);
  if (physical.committed) {
    state.memory.decommit(physical);
    state.graph_memory.reserved[static_cast<size_t>(block.device)].take(physical.bytes);
  }
  recount(state, start, block);
}

// What nobody has any use for is kept as long as it has memory.
void settle(State& state, CUdeviceptr start, GraphBlock& block) {
  recount(state, start, block);
  if (!block.live && block.graphs == 0 && !memory_of(state, start).committed)
    free_allocation(state, state.memory.find(start));
}

// A block that graphs which are gone have left; 0 if there is none.
CUdeviceptr left_block(State& state, int device, uint64_t reserved_bytes) {
  for (const auto& [start, block] : state.graph_memory.blocks) {
    const bool is_left = !block.live && block.graphs == 0 && block.device == device;
    if (is_left && memory_of(state, start).bytes == reserved_bytes && state.scheduler.is_complete(block.last))
      return start;
  }
  return 0;
}

void mark_free(State& state, CUdeviceptr start, GraphBlock& block, WorkPoint freed) {
  state.detector.note_free(start);
  block.live = false;
  block.last = std::move(freed);
  settle(state, start, block);
}

}  // namespace

void GraphMemory::reset() {
  blocks.clear();
  used.fill({});
  reserved.fill({});
}

GraphBlock* GraphMemory::find(CUdeviceptr start) {
  const auto found = blocks.find(start);
  return found == blocks.end() ? nullptr : &found->second;
}

std::vector<CUdeviceptr> GraphBlocks::own() const {
  std::vector<CUdeviceptr> all = freed;
  all.insert(all.end(), unfreed.begin(), unfreed.end());
  return all;
}

CUresult add_graph_block(Call& call, GraphBlocks& blocks, CUdeviceptr* out, uint64_t bytes, int device) {
  State& state = call.state();
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > state.config.capacity_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  CUdeviceptr start = left_block(state, device, whole_pages(state, bytes));
  if (start != 0) {
    state.memory.find(start)->bytes = bytes;
  } else if (const CUresult result = reserve_block(call, &start, bytes, device); result != CUDA_SUCCESS) {
    return result;
  }
  GraphBlock& block = state.graph_memory.blocks[start];
  block.device = device;
  block.graphs = 1;
  block.free_node = GraphBlock::FreeNode::kNone;
  recount(state, start, block);
  blocks.unfreed.push_back(start);
  *out = start;
  return CUDA_SUCCESS;
}

CUresult add_graph_free(State& state, GraphBlocks& blocks, CUdeviceptr start) {
  GraphBlock* block = state.graph_memory.find(start);
  if (block == nullptr || block->free_node != GraphBlock::FreeNode::kNone) return CUDA_ERROR_INVALID_VALUE;
  const bool is_own = std::erase(blocks.unfreed, start) != 0;
  (is_own ? blocks.freed : blocks.foreign).push_back(start);
  block->free_node = is_own ? GraphBlock::FreeNode::kInOwnGraph : GraphBlock::FreeNode::kInAnother;
  return CUDA_SUCCESS;
}

RangeAccess whole_graph_block(State& state, CUdeviceptr start) {
  return {start, state.memory.find(start)->bytes, true, false, state.graph_memory.find(start)->device};
}

void retain_graph_blocks(State& state, const GraphBlocks& blocks) {
  for (const CUdeviceptr start : blocks.own()) {
    if (GraphBlock* block = state.graph_memory.find(start); block != nullptr) ++block->graphs;
  }
}

void release_graph_blocks(State& state, const GraphBlocks& blocks) {
  for (const CUdeviceptr start : blocks.own()) {
    GraphBlock* block = state.graph_memory.find(start);
    if (block == nullptr) continue;  // its context has ended
    --block->graphs;
    settle(state, start, *block);
  }
}

CUresult upload_graph_blocks(State& state, const GraphBlocks& blocks) {
  for (const CUdeviceptr start : blocks.own()) {
    GraphBlock* block = state.graph_memory.find(start);
    if (block == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Physical& physical = memory_of(state, start);
    if (physical.committed) continue;
    if (!state.memory.commit(physical)) return CUDA_ERROR_OUT_OF_MEMORY;
    state.graph_memory.reserved[static_cast<size_t>(block->device)].add(physical.bytes);
    recount(state, start, *block);
  }
  return CUDA_SUCCESS;
}

CUresult begin_graph_launch(State& state, const GraphBlocks& blocks, bool frees, Stream* stream, Lock& lock) {
  if (blocks.empty()) return CUDA_SUCCESS;
  const auto is_live = [&](CUdeviceptr start) {
    const GraphBlock* block = state.graph_memory.find(start);
    return block != nullptr && block->live;
  };
  std::vector<RangeAccess> left;  // by the launch before
  for (const CUdeviceptr start : blocks.unfreed) {
    if (is_live(start)) left.push_back(whole_graph_block(state, start));
  }
  if (!left.empty() && !frees) return CUDA_ERROR_INVALID_VALUE;
  if (!std::all_of(blocks.foreign.begin(), blocks.foreign.end(), is_live)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = upload_graph_blocks(state, blocks); result != CUDA_SUCCESS) return result;
  for (const CUdeviceptr start : blocks.own())
    state.scheduler.order_after(stream->timeline, state.graph_memory.find(start)->last);
  if (!left.empty()) {
    const std::vector<RangeAccess> freed = left;
    const CUresult result =
        enqueue(state, stream, nullptr, std::move(left), "free before cuGraphLaunch", lock);
    if (result != CUDA_SUCCESS) return result;
    for (const RangeAccess& block : freed) state.detector.note_free(block.start);
  }
  for (const CUdeviceptr start : blocks.own())
    state.detector.note_alloc(start, state.memory.find(start)->bytes, stream->id);
  return CUDA_SUCCESS;
}

void end_graph_launch(State& state, const GraphBlocks& blocks, const Stream& stream) {
  const WorkPoint end = state.scheduler.end_of(stream.timeline);
  for (const CUdeviceptr start : blocks.unfreed) {
    GraphBlock* block = state.graph_memory.find(start);
    if (block == nullptr) continue;
    block->live = true;
    block->last = end;
    recount(state, start, *block);
  }
  for (const std::vector<CUdeviceptr>* freed : {&blocks.freed, &blocks.foreign}) {
    for (const CUdeviceptr start : *freed) {
      if (GraphBlock* block = state.graph_memory.find(start); block != nullptr)
        mark_free(state, start, *block, end);
    }
  }
}

CUresult free_graph_block(State& state, CUdeviceptr start, Stream* stream, Lock& lock) {
  GraphBlock* block = state.graph_memory.find(start);
  if (block == nullptr || !block->live) return CUDA_ERROR_INVALID_VALUE;
  WorkPoint freed;
  if (stream != nullptr) {
    const CUresult result =
        enqueue(state, stream, nullptr, {whole_graph_block(state, start)}, "cuMemFreeAsync", lock);
    if (result != CUDA_SUCCESS) return result;
    freed = state.scheduler.end_of(stream->timeline);
  } else {
    state.detector.before_unmap(*state.memory.find(start));
  }
  mark_free(state, start, *block, std::move(freed));
  return CUDA_SUCCESS;
}

void trim_graph_memory(State& state, int device) {
  std::vector<CUdeviceptr> idle;
  for (const auto& [start, block] : state.graph_memory.blocks) {
    if (block.device == device && !block.live && state.scheduler.is_complete(block.last))
      idle.push_back(start);
  }
  for (const CUdeviceptr start : idle) {
    GraphBlock& block = state.graph_memory.blocks.at(start);
    decommit(state, start, block);
    settle(state, start, block);
  }
}

void forget_graph_block(State& state, CUdeviceptr start) {
  GraphBlock* block = state.graph_memory.find(start);
  if (block == nullptr) return;
  state.detector.forget(start);
  block->live = false;
  block->graphs = 0;
  decommit(state, start, *block);
  state.graph_memory.blocks.erase(start);
}

}  // namespace spillway::sim
