// The states of pools at the C ABI: what is reported, and what comes back.
#include <cstdint>
#include <map>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr spw_pool_id kPool{7, 8};

void* in_pool(size_t bytes) {
  void* block = nullptr;
  SPW_CHECK(spw_pool_begin(0, kPool, nullptr, nullptr) == SPW_OK);
  SPW_CHECK(spw_alloc(bytes, 0, nullptr, &block) == SPW_OK);
  SPW_CHECK(spw_pool_end(0, kPool) == SPW_OK);
  return block;
}

// Requested bytes by address.
struct Seen {
  std::map<void*, uint64_t> freed;
  std::map<void*, uint64_t> allocated;
};

void note(const spw_block* block, spw_stream stream, void* context) {
  auto& seen = *static_cast<Seen*>(context);
  SPW_CHECK(stream == nullptr && block->bytes >= block->requested_bytes);
  SPW_CHECK(block->state == SPW_BLOCK_ALLOCATED ||
            (block->state == SPW_BLOCK_INACTIVE && seen.allocated.empty()));
  auto& list = block->state == SPW_BLOCK_ALLOCATED ? seen.allocated : seen.freed;
  list[reinterpret_cast<void*>(block->address)] = block->requested_bytes;
  // No lock is held here.
  SPW_CHECK(spw_validate(0) == SPW_OK);
}

TEST(PoolState, BringsBlocksBackAndTellsWhatChanged) {
  in_child({}, [] {
    const auto driver = start_device();
    void* const gone = in_pool(3 * kMiB + 1);
    void* const kept = in_pool(700);
    spw_pool_state* state = nullptr;
    SPW_CHECK(spw_pool_checkpoint(0, kPool, &state) == SPW_OK && state != nullptr);
    SPW_CHECK(spw_free(gone) == SPW_OK);
    void* const later = in_pool(5 * kMiB);
    Seen seen;
    SPW_CHECK(spw_pool_restore(state, &note, &seen) == SPW_OK);
    SPW_CHECK((seen.freed == std::map<void*, uint64_t>{{later, 5 * kMiB}, {kept, 700}}));
    SPW_CHECK((seen.allocated == std::map<void*, uint64_t>{{gone, 3 * kMiB + 1}, {kept, 700}}));
    SPW_CHECK(stats_of(0).requested_bytes.all.current == 3 * kMiB + 1 + 700);
    SPW_CHECK(spw_free(gone) == SPW_OK && spw_free(kept) == SPW_OK);
    // Without a visitor, and from nothing.
    SPW_CHECK(spw_pool_restore(state, nullptr, nullptr) == SPW_OK);
    SPW_CHECK(stats_of(0).allocation.all.current == 2);
    spw_pool_state_free(state);
    SPW_CHECK(spw_free(gone) == SPW_OK && spw_free(kept) == SPW_OK && spw_validate(0) == SPW_OK);
  });
}

TEST(PoolState, OutlivesItsPool) {
  in_child({}, [] {
    const auto driver = start_device();
    void* const block = in_pool(kMiB);
    spw_pool_state* state = nullptr;
    SPW_CHECK(spw_pool_checkpoint(0, kPool, &state) == SPW_OK);
    SPW_CHECK(spw_free(block) == SPW_OK && spw_pool_release(0, kPool) == SPW_OK && spw_trim(0) == SPW_OK);
    SPW_CHECK(stats_of(0).reserved_bytes.all.current == 0);
    SPW_CHECK(spw_pool_restore(state, nullptr, nullptr) == SPW_ERROR_INVALID_STATE);
    spw_pool_state_free(state);
  });
}

TEST(PoolState, IsRefusedWhereBlocksAreGuarded) {
  in_child({{"SPILLWAY_CONF", "debug:guard"}}, [] {
    const auto driver = start_device();
    in_pool(kMiB);
    spw_pool_state* state = nullptr;
    SPW_CHECK(spw_pool_checkpoint(0, kPool, &state) == SPW_ERROR_UNSUPPORTED && state == nullptr);
    SPW_CHECK(std::string(spw_last_error()).find("debug:guard") != std::string::npos);
  });
}

}  // namespace
}  // namespace spillway::test
