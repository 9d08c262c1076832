#include "allocator/guarded_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace spillway {
namespace {

std::string step_text(const char* what, const GuardStep& step) {
  return fmt::format("  {}: step {}, thread {}\n", what, step.number, step.thread) + step.trace.text("    ");
}

std::string history(const GuardedBlock& block, int device) {
  std::string text =
      fmt::format("  block: {:#x}, {} bytes, device {}, stream {:#x}; it {}\n", block.user(), block.bytes,
                  device, reinterpret_cast<uint64_t>(block.stream), whereabouts(block.state));
  if (!block.has_zones)
    text += "  it has no red zones: its stream was captured then, or the driver refused\n";
  text += step_text("allocated", block.allocated);
  if (block.freed.number != 0) text += step_text("freed", block.freed);
  return text;
}

std::string plural(uint64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

void Damage::compare(uint64_t start, const uint8_t* found, uint64_t bytes, uint8_t expected) {
  if (bytes == 0) return;
  const bool is_sampled = count > 0 && start - first < sample.size();
  // All equal to the first, and that right: the comparison that costs least.
  if (!is_sampled && found[0] == expected && std::memcmp(found, found + 1, bytes - 1) == 0) return;
  for (uint64_t i = 0; i < bytes; ++i) {
    const uint64_t at = start + i;
    if (count > 0 && at - first < sample.size()) {
      sample[at - first] = found[i];
      sampled = static_cast<uint32_t>(at - first) + 1;
    }
    if (found[i] == expected) continue;
    if (count++ == 0) {
      first = at;
      sample[0] = found[i];
      sampled = 1;
    }
    last = at;
  }
}

const char* whereabouts(GuardedBlock::State state) {
  switch (state) {
    case GuardedBlock::State::kLive:
      return "is live";
    case GuardedBlock::State::kFreeing:
    case GuardedBlock::State::kQuarantined:
      return "lies in quarantine";
    case GuardedBlock::State::kGone:
      return "has left the quarantine";
  }
  return "is unknown";
}

std::string damage_report(const GuardedBlock& block, int device, GuardedBlock::Finding finding,
                          const Damage& damage) {
  const char* where = "into block";
  const char* when = " after its free";
  uint8_t expected = kFreedPattern;
  if (finding != GuardedBlock::kAfterFree) {
    where = finding == GuardedBlock::kBefore ? "before the beginning of block" : "after the end of block";
    when = "";
    expected = kZonePattern;
  }
  const auto offset = static_cast<int64_t>(damage.first) - static_cast<int64_t>(block.user());
  std::string text = fmt::format(
      "spillway: guard: write of {} {} {:#x} of {}{}: first at offset {}, found {:#04x}, expected {:#04x}\n",
      plural(damage.count, "byte"), where, block.user(), plural(block.bytes, "byte"), when, offset,
      damage.sample[0], expected);
  text += fmt::format("  offsets {} to {}; from the first on:", offset,
                      static_cast<int64_t>(damage.last) - static_cast<int64_t>(block.user()));
  for (uint32_t i = 0; i < damage.sampled; ++i) text += fmt::format(" {:02x}", damage.sample[i]);
  return text + "\n" + history(block, device);
}

std::string free_report(const GuardedBlock& block, int device, GuardedBlock::Finding finding,
                        uint64_t freed_va, const GuardStep& now) {
  const std::string title =
      finding == GuardedBlock::kDoubleFree
          ? fmt::format("spillway: guard: second free of block {:#x} of {}\n", freed_va,
                        plural(block.bytes, "byte"))
          : fmt::format("spillway: guard: free of {:#x}, at offset {} of block {:#x} of {}\n", freed_va,
                        static_cast<int64_t>(freed_va) - static_cast<int64_t>(block.user()), block.user(),
                        plural(block.bytes, "byte"));
  return title + step_text("this free", now) + history(block, device);
}

}  // namespace spillway
