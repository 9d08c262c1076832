#include "bench/contender.h"

#include "cli/torch_peer/torch_peer.h"
#include "include/spillway/spillway.h"

namespace spillway::bench {
namespace {

spw_status spillway_allocate(uint64_t bytes, CUstream_st* stream, void** out) {
  return spw_alloc(bytes, 0, stream, out);
}

spw_status spillway_empty_cache() {
  return spw_trim(0);
}

}  // namespace

Contender spillway_contender() {
  return {.name = "spillway",
          .allocate = spillway_allocate,
          .free = spw_free,
          .empty_cache = spillway_empty_cache,
          .last_error = spw_last_error};
}

Result<Contender> native_contender() {
  Result<const TorchPeer*> peer = load_torch_peer(false, 1);
  if (!peer.ok()) return peer.take_status();
  return native_contender(*peer.value(), false);
}

Contender native_contender(const TorchPeer& peer, bool expandable) {
  return {.name = expandable ? "expandable" : "native",
          .allocate = peer.allocate,
          .free = peer.free,
          .empty_cache = peer.empty_cache,
          .last_error = peer.last_error};
}

}  // namespace spillway::bench
