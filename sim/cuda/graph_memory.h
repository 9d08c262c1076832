// Memory of graphs' allocation nodes. A node has addresses from its making on; memory comes to them with a
// launch or an upload, and stays until a trim that finds no graph in need of it. A block is live from the
// launch that allocates it until a node, the program or, where its graph was instantiated so, the next launch
// frees it: a free counts as a write of the whole block, for the race detector. What no graph has and nobody
// uses serves later nodes of its size.
//
// Guarded by State's lock; GraphMemory is part of State, and the functions join it with the other parts.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "sim/cuda/config.h"
#include "sim/cuda/cuda_api.h"
#include "sim/cuda/detector.h"
#include "sim/cuda/gauge.h"
#include "sim/cuda/scheduler.h"

namespace spillway::sim {

class Call;
struct State;
struct Stream;

struct GraphBlock {
  // Says where the block's free node is, if it has one.
  enum class FreeNode : uint8_t { kNone, kInOwnGraph, kInAnother };

  int device = 0;
  unsigned graphs = 0;  // that have its allocation node, as made and as instantiated
  FreeNode free_node = FreeNode::kNone;
  bool live = false;
  bool is_used = false;  // counted among what graphs use
  WorkPoint last;        // the end of its latest launch, or its free
};

struct GraphMemory {
  std::map<CUdeviceptr, GraphBlock> blocks;
  std::array<Gauge, kMaxDevices> used;      // memory that a graph has, or that is live
  std::array<Gauge, kMaxDevices> reserved;  // all memory, whole pages

  void reset();
  GraphBlock* find(CUdeviceptr start);
};

// The blocks of a graph, by who frees them.
struct GraphBlocks {
  std::vector<CUdeviceptr> freed;    // by a node of its own
  std::vector<CUdeviceptr> unfreed;  // by the program, another graph, or the next launch
  std::vector<CUdeviceptr> foreign;  // of other graphs, which a node of this one frees

  bool empty() const { return freed.empty() && unfreed.empty() && foreign.empty(); }
  std::vector<CUdeviceptr> own() const;
};

// A new node's addresses, for a graph that is one of the block's from now on.
CUresult add_graph_block(Call& call, GraphBlocks& blocks, CUdeviceptr* out, uint64_t bytes, int device);
// A free node; errors as those of cuGraphAddMemFreeNode.
CUresult add_graph_free(State& state, GraphBlocks& blocks, CUdeviceptr start);
// Returns what an allocation or a free node does, for the race detector.
RangeAccess whole_graph_block(State& state, CUdeviceptr start);

// Another graph has the same nodes, or has them no more.
void retain_graph_blocks(State& state, const GraphBlocks& blocks);
void release_graph_blocks(State& state, const GraphBlocks& blocks);

// Memory for all of its blocks.
CUresult upload_graph_blocks(State& state, const GraphBlocks& blocks);
// Around the nodes of a launch, which come after all earlier use of the blocks by launches.
CUresult begin_graph_launch(State& state, const GraphBlocks& blocks, bool frees, Stream* stream, Lock& lock);
void end_graph_launch(State& state, const GraphBlocks& blocks, const Stream& stream);
// By the program. Null: the host has waited for all that used the block.
CUresult free_graph_block(State& state, CUdeviceptr start, Stream* stream, Lock& lock);

void trim_graph_memory(State& state, int device);
// The block's addresses go, whoever says so.
void forget_graph_block(State& state, CUdeviceptr start);

}  // namespace spillway::sim
