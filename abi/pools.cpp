// Private pools at the C ABI: claims, sources, states.
#include <utility>
#include <vector>

#include "abi/arena_calls.h"

using spillway::Arena;
using spillway::Guard;
using spillway::PoolId;
using spillway::Process;
using spillway::Result;
using spillway::Status;

struct spw_pool_state {
  Arena& arena;  // for as long as the process lives
  const spillway::PoolState blocks;
};

extern "C" {

spw_status spw_pool_begin(int device, spw_pool_id id, spw_pool_filter filter, void* context) {
  return spillway::with_arena(device, [&](Arena& arena) {
    if (filter == nullptr) return arena.begin_pool(PoolId{id.first, id.second}, nullptr);
    return arena.begin_pool(PoolId{id.first, id.second},
                            [filter, context](CUstream stream) { return filter(stream, context) != 0; });
  });
}

spw_status spw_pool_end(int device, spw_pool_id id) {
  return spillway::with_arena(device, [&](Arena& arena) {
    return arena.end_pool(PoolId{id.first, id.second});
  });
}

spw_status spw_pool_release(int device, spw_pool_id id) {
  return spillway::with_arena(device, [&](Arena& arena) {
    return arena.release_pool(PoolId{id.first, id.second});
  });
}

spw_status spw_pool_retain(int device, spw_pool_id id) {
  return spillway::with_arena(device, [&](Arena& arena) {
    return arena.retain_pool(PoolId{id.first, id.second});
  });
}

spw_status spw_pool_lend(int device, spw_pool_id id, int lends) {
  return spillway::with_arena(device, [&](Arena& arena) {
    return arena.set_pool_lends(PoolId{id.first, id.second}, lends != 0);
  });
}

spw_status spw_pool_set_no_split(int device, spw_pool_id id) {
  return spillway::with_arena(device, [&](Arena& arena) {
    return arena.set_pool_no_split(PoolId{id.first, id.second});
  });
}

spw_status spw_pool_claims(int device, spw_pool_id id, uint64_t* claims) {
  if (claims == nullptr) {
    return spillway::guarded([] { return spillway::is_null("claims"); });
  }
  *claims = 0;
  return spillway::with_used_arena(device, [&](Arena& arena) {
    *claims = arena.pool_claims(PoolId{id.first, id.second});
    return Status();
  });
}

spw_status spw_pool_trim(int device, spw_pool_id id) {
  return spillway::with_used_arena(device, [&](Arena& arena) {
    Guard* guard = Process::existing_guard(arena.device());
    return guard == nullptr ? arena.trim_pool(PoolId{id.first, id.second}) : guard->trim();
  });
}

spw_status spw_walk_pools(int device, spw_pool_visitor visit, void* context) {
  return spillway::with_used_arena(device, [&](Arena& arena) {
    if (visit == nullptr) return spillway::is_null("visit");
    for (const auto& [pool, bytes] : arena.pool_bytes()) {
      const spw_pool_id id{pool.first, pool.second};
      if (visit(&id, &bytes, context) != 0) break;
    }
    return Status();
  });
}

spw_status spw_pool_set_source(int device, spw_pool_id id, spw_segment_alloc alloc, spw_segment_free free,
                               void* context) {
  return spillway::with_arena(device, [&](Arena& arena) {
    if (alloc == nullptr || free == nullptr) return spillway::is_null("alloc or free");
    return arena.set_pool_source(
        PoolId{id.first, id.second},
        {[=](uint64_t bytes, spw_stream stream) { return alloc(bytes, stream, context); },
         [=](const spillway::SegmentMemory& memory) { free(memory.pointer, memory.bytes, context); }});
  });
}

spw_status spw_pool_checkpoint(int device, spw_pool_id id, spw_pool_state** out) {
  return spillway::with_arena(device, [&](Arena& arena) -> Status {
    if (out == nullptr) return spillway::is_null("out");
    *out = nullptr;
    if (Process::is_guarded()) {
      return Status::unsupported("the state of a pool cannot be saved with debug:guard");
    }
    Result<spillway::PoolState> state = arena.checkpoint_pool(PoolId{id.first, id.second});
    if (!state.ok()) return state.take_status();
    *out = new spw_pool_state{arena, std::move(state.value())};
    return {};
  });
}

spw_status spw_pool_restore(const spw_pool_state* state, spw_restore_visitor visit, void* context) {
  return spillway::guarded([&]() -> Status {
    if (state == nullptr) return spillway::is_null("state");
    std::vector<spillway::RestoredBlock> changes;
    Status status = state->arena.restore_pool(state->blocks, &changes);
    if (!status.ok() || visit == nullptr) return status;
    for (const spillway::RestoredBlock& change : changes) {
      const spw_block block = spillway::to_abi(change.row);
      visit(&block, change.stream, context);
    }
    return {};
  });
}

void spw_pool_state_free(spw_pool_state* state) {
  delete state;
}

}  // extern "C"
