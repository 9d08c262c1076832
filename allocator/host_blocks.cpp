#include "allocator/host_blocks.h"

#include <algorithm>
#include <bit>

#include "allocator/address_map.h"

namespace spillway {

HostBlocks& HostBlocks::instance() {
  static HostBlocks& blocks = *new HostBlocks;
  return blocks;
}

void* HostBlocks::place(const std::shared_ptr<const HostPlacement>& placement, uint64_t bytes,
                        CUstream stream, DeviceCounters& counters) {
  // What can fail for want of host memory comes first.
  Blocks one;
  one.emplace(0, Block{bytes, {stream}, placement, &counters});
  void* block = placement->place(bytes, stream);
  if (block == nullptr) return nullptr;
  Blocks::node_type node = one.extract(one.begin());
  node.key() = std::bit_cast<uint64_t>(block);
  // A block of the device that was there once must not be found instead.
  AddressMap& map = AddressMap::instance();
  map.clear_if(node.key(), map.find(node.key()));
  counters.on_host_placed(static_cast<int64_t>(bytes));
  counters.trace(TraceKind::kPlace, node.key(), bytes, bytes, std::bit_cast<uint64_t>(stream));
  const Lock lock(mutex_);
  blocks_.insert(std::move(node));
  return block;
}

void HostBlocks::release(const Blocks::node_type& node) {
  const Block& block = node.mapped();
  block.counters->on_host_placed(-static_cast<int64_t>(block.bytes));
  block.counters->trace(TraceKind::kUnplace, node.key(), block.bytes, block.bytes);
  block.placement->release(std::bit_cast<void*>(node.key()), block.streams);
}

Status HostBlocks::take(uint64_t va, bool quarantined, Status unknown) {
  Blocks::node_type node;
  {
    const Lock lock(mutex_);
    const auto found = blocks_.find(va);
    if (found == blocks_.end() || found->second.quarantined != quarantined) return unknown;
    node = blocks_.extract(found);
  }
  release(node);
  return {};
}

Status HostBlocks::free(uint64_t va, Status unknown) {
  return take(va, false, std::move(unknown));
}

Status HostBlocks::release_quarantined(uint64_t va, Status unknown) {
  return take(va, true, std::move(unknown));
}

Status HostBlocks::record_stream(uint64_t va, CUstream stream, Status unknown) {
  const Lock lock(mutex_);
  const auto found = blocks_.find(va);
  if (found == blocks_.end() || found->second.quarantined) return unknown;
  std::vector<CUstream>& streams = found->second.streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  return {};
}

Status HostBlocks::quarantine(uint64_t va, Status unknown) {
  const Lock lock(mutex_);
  const auto found = blocks_.find(va);
  if (found == blocks_.end() || found->second.quarantined) return unknown;
  found->second.quarantined = true;
  return {};
}

void HostBlocks::release_all(const DeviceCounters& counters) {
  std::vector<Blocks::node_type> nodes;
  {
    const Lock lock(mutex_);
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      const auto next = std::next(block);
      if (block->second.counters == &counters) nodes.push_back(blocks_.extract(block));
      block = next;
    }
  }
  for (const Blocks::node_type& node : nodes) release(node);
}

}  // namespace spillway
