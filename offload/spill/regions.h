// The regions of one device by tag: which the program has open, which is the default, and which go when room
// is needed. How one moves is said in region.h, which memory moves how in region_memory.h; when the allocator
// may let go of it, the arena says.
//
// Thread-safe. Inside a last rung nobody waits for a region that somebody has in hand: it is refused there.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/arena.h"
#include "offload/spill/region.h"
#include "stats/lock.h"

namespace spillway {

// Says what an idle phase gave back.
struct EvictionResult {
  uint64_t bytes = 0;
  bool is_complete = true;  // false: it was stopped, or passed over a region that somebody had in hand
};

class Regions {
 public:
  static constexpr size_t kMostTagLetters = 64;
  // Pools of regions are numbered from here, others must not be. The second number is 0: a pool that PyTorch
  // captures graphs into has one of the two.
  static constexpr uint64_t kFirstPool = 0x73706c7700000001;  // "splw"

  // `codec` is that of regions for which no other is set.
  Regions(Arena& arena, RegionMemory& memory, Codec codec = Codec::kNone)
      : arena_(arena), memory_(memory), codec_(codec) {}
  ~Regions();
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;

  // See spw_region_begin, and so on.
  Status begin(const std::string& tag);
  Status end(const std::string& tag);
  // See spw_region_begin_none: of every device.
  static void begin_none();
  static Status end_none();
  // Errors: invalid_argument.
  static Status check_tag(const std::string& tag);
  // See spw_region_set_default; empty is none. Errors: those of begin(), invalid_state (a thread has it
  // open).
  Status set_default(const std::string& tag);
  Result<PoolId> pool(const std::string& tag);
  Status evict(const std::string& tag, SpillTo to);
  Status restore(const std::string& tag);
  Status prefetch(const std::string& tag);
  Status pin(const std::string& tag);
  Status unpin(const std::string& tag);
  Status set_priority(const std::string& tag, int priority);
  Status set_codec(const std::string& tag, Codec codec);
  // Returns how often the program has used a region of any device so far (begun, restored, pinned it), or
  // said that it may go.
  static uint64_t uses() { return Region::uses(); }
  // While nobody needs the device: where it holds more than `above_bytes`, gives back what it keeps for later
  // and evicts what may go, until it holds no more than `below_bytes`, or before a region `goes_on` says no.
  Result<EvictionResult> relieve(uint64_t above_bytes, uint64_t below_bytes,
                                 const std::function<bool()>& goes_on);
  Status release(const std::string& tag);
  // See spw_region_read.
  Status read(const std::string& tag, uint64_t va, uint64_t bytes, std::byte* out);
  Result<RegionReport> report(const std::string& tag);
  // Inside a last rung, without regions that other threads have in hand.
  std::vector<std::pair<std::string, RegionReport>> reports();
  // Returns what the regions that are out of the device take together, without waiting; nothing while one
  // moves.
  std::optional<RegionUsage> try_usage();

 private:
  using RegionPointer = std::shared_ptr<Region>;

  std::vector<RegionPointer> all();
  Result<RegionPointer> find(const std::string& tag);
  Result<RegionPointer> find_or_make(const std::string& tag);
  static void finish_prefetch(Region& region);
  Status make(Region& region) SPW_REQUIRES(mutex_);
  // Runs `body` on the region, settled.
  template <typename Body>
  Status with_settled(const std::string& tag, Body body);
  // Makes it serve what no region is open for; and the end of that.
  Status open_as_default(Region& region) SPW_REQUIRES(choosing_default_);
  Status close_as_default(Region& region) SPW_REQUIRES(choosing_default_);
  static Result<RegionReport> look_at(Region& region);
  // Returns what frees host memory for a region that leaves.
  BlockMover::MakeRoom room_for(const Region& leaving);
  // Writes the region that was used longest ago of those in host memory, and before `leaving`, on to the
  // disk. False where there is none, or none can be written. Never waits for a region that somebody has in
  // hand.
  bool write_down_colder(const Region& leaving);
  // Evicts what may go, the coldest first, each region at most once, as long as `wants_more`, which is told
  // how many bytes went so far, says so before each. Never waits for a region that somebody has in hand.
  EvictionResult evict_coldest(const std::function<bool(uint64_t)>& wants_more);

  Arena& arena_;
  RegionMemory& memory_;
  const Codec codec_;
  BlockingMutex mutex_;
  std::map<std::string, RegionPointer> regions_ SPW_GUARDED_BY(mutex_);
  uint64_t next_pool_ SPW_GUARDED_BY(mutex_) = kFirstPool;
  LastRungs::Id rung_ SPW_GUARDED_BY(mutex_) = 0;  // 0: none is asked yet
  BlockingMutex choosing_default_;
  RegionPointer default_ SPW_GUARDED_BY(choosing_default_);
};

}  // namespace spillway
