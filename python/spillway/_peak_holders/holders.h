// Who holds a device's memory at the moment at which most is held.
//
// PyTorch's allocator tells of each block that comes and goes. What was there at the highest moment so far is
// what is live now and came before it, and what went since: so nothing is copied when a new peak comes, an
// event costs the same whatever is live, and what is kept is bounded by what was ever live at once.
//
// Called under the allocator's locks, so neither Python nor PyTorch is called here, but by told().
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace spillway::holders {

enum class Kind : uint8_t { kOther, kParameters, kGradients, kOptimizerStates, kBuffers };
inline constexpr std::array<const char*, 5> kKinds = {"others", "parameters", "gradients", "optimizer_states",
                                                      "buffers"};

// Where a block came from: the stack of Python, and, inside a backward pass, the node of autograd.
struct Origin {
  std::shared_ptr<c10::GatheredContext> stack;
  const std::string* node = nullptr;
  bool in_optimizer = false;
  int steps = 0;  // that were over
};

struct Block {
  uint64_t bytes = 0;  // as requested
  uint64_t number = 0;
  Kind kind = Kind::kOther;
  Origin origin;
};

// Holds what was there at the highest moment.
struct Peak {
  uint64_t bytes = 0;
  Block last;  // made it
  std::vector<Block> blocks;
};

class Device {
 public:
  // Tells whether this is a new peak.
  bool add(uint64_t address, uint64_t bytes, Origin origin);
  void remove(uint64_t address);
  void mark(uint64_t address, Kind kind);

  uint64_t peak_bytes() const { return peak_; }
  // Says which block made it, counted from 1; 0: none.
  uint64_t peak_number() const { return peak_block_.number; }
  Peak peak() const;

 private:
  std::unordered_map<uint64_t, Block> live_;
  std::vector<Block> gone_;  // since the peak, of what was there then
  uint64_t bytes_ = 0;
  uint64_t peak_ = 0;
  uint64_t count_ = 0;
  Block peak_block_;
};

// As JSON. Needs Python's lock and no other, as the names of lines are asked for, which may free memory.
std::string told(const Peak& peak);

}  // namespace spillway::holders
