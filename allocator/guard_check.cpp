// Finds damage for a guard: bytes are read back behind what may still write them legally, compared, and
// reported.

#include <algorithm>
#include <map>

#include "allocator/guard.h"
#include "driver/capture.h"
#include "driver/context.h"

namespace spillway {

Guard::Inspection Guard::inspection_of(const GuardedBlock& block) {
  Inspection inspection;
  inspection.base = block.base;
  inspection.bytes = block.bytes;
  inspection.total_bytes = block.total_bytes;
  inspection.allocated = block.allocated.number;
  inspection.poisoned = block.poisoned;
  return inspection;
}

Status Guard::open_readback() {
  if (readback_ != nullptr) return {};
  Result<std::unique_ptr<Readback>> made = Readback::create(*driver_);
  if (!made.ok()) return made.take_status();
  readback_ = std::move(made.value());
  return {};
}

std::vector<Guard::Inspection> Guard::ordered(const std::vector<GuardedBlock*>& blocks) {
  std::vector<Inspection> inspections;
  const ScopedContext context(*driver_, arena_.context());
  if (!context.status().ok() || !open_readback().ok()) return inspections;
  std::map<CUstream, bool> reached;
  for (const GuardedBlock* block : blocks) {
    if (!block->has_zones) continue;
    if (block->out_of_reach) {
      inspections.push_back(inspection_of(*block));  // ordered when its stream went
      continue;
    }
    const auto [stream, is_new] = reached.emplace(block->stream, false);
    if (block->stream == CU_STREAM_PER_THREAD && block->poisoned) {
      const Lock lock(mutex_);
      const auto event = poison_events_.find(block);
      stream->second = event != poison_events_.end() && readback_->order_after(event->second).ok();
    } else if (is_new) {
      stream->second = !is_capturing(*driver_, block->stream) && readback_->order_after(block->stream).ok();
    }
    if (stream->second) inspections.push_back(inspection_of(*block));
  }
  return inspections;
}

Status Guard::check() {
  const Lock checking(check_mutex_);
  std::vector<Inspection> inspections;
  {
    const Lock lock(mutex_);
    for (const auto& [base, block] : blocks_) {
      if (!block.has_zones) continue;
      inspections.push_back(inspection_of(block));
      // Until it is in quarantine, its fill may not be enqueued yet.
      if (block.state != State::kQuarantined) inspections.back().poisoned = false;
    }
  }
  const ScopedContext context(*driver_, arena_.context());
  if (!context.status().ok()) return context.status();
  for (const CUstream stream : arena_.streams()) {
    // A stream that is gone answers with an error, and is no reason not to look.
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    if (driver_->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
        capture != CU_STREAM_CAPTURE_STATUS_NONE) {
      return Status::invalid_state("check while a stream is being captured: nothing can be waited for now");
    }
  }
  if (Status status = open_readback(); !status.ok()) return status;
  const RelaxedCapture relaxed(*driver_);
  if (Status status = driver_->check(driver_->cuCtxSynchronize(), "cuCtxSynchronize"); !status.ok())
    return status;
  return inspect(inspections);
}

Status Guard::inspect(std::vector<Inspection>& inspections) {
  if (inspections.empty()) return {};
  const ScopedContext context(*driver_, arena_.context());
  if (!context.status().ok()) return context.status();
  std::vector<DeviceRange> ranges;
  std::vector<Inspection*> owners;
  const auto read = [&](Inspection& inspection, uint64_t begin, uint64_t end) {
    ranges.push_back({begin, end - begin});
    owners.push_back(&inspection);
  };
  for (Inspection& inspection : inspections) {
    const uint64_t user = inspection.base + kZoneBytes;
    const uint64_t end = inspection.base + inspection.total_bytes;
    if (inspection.poisoned) {
      read(inspection, inspection.base, end);
    } else {
      read(inspection, inspection.base, user);
      read(inspection, user + inspection.bytes, end);
    }
  }
  Status status = readback_->read(ranges, [&](size_t range, uint64_t offset, const uint8_t* bytes,
                                              size_t count) {
    Inspection& inspection = *owners[range];
    const uint64_t start = ranges[range].start + offset;
    const uint64_t user = inspection.base + kZoneBytes;
    const auto part = [&](Damage& damage, uint64_t begin, uint64_t end, uint8_t expected) {
      begin = std::max(begin, start);
      end = std::min(end, start + count);
      if (begin < end) damage.compare(begin, bytes + (begin - start), end - begin, expected);
    };
    part(inspection.before, inspection.base, user, kZonePattern);
    if (inspection.poisoned) part(inspection.inside, user, user + inspection.bytes, kFreedPattern);
    part(inspection.after, user + inspection.bytes, inspection.base + inspection.total_bytes, kZonePattern);
  });
  for (const Inspection& inspection : inspections) {
    report_damage(inspection, GuardedBlock::kBefore, inspection.before);
    report_damage(inspection, GuardedBlock::kAfterFree, inspection.inside);
    report_damage(inspection, GuardedBlock::kAfter, inspection.after);
  }
  return status;
}

void Guard::report_damage(const Inspection& inspection, GuardedBlock::Finding finding, const Damage& damage) {
  if (damage.count == 0) return;
  std::string report;
  {
    const Lock lock(mutex_);
    const auto found = blocks_.find(inspection.base);
    // Freed and given back meanwhile: then what was read may have been somebody else's.
    if (found == blocks_.end() || found->second.allocated.number != inspection.allocated) return;
    GuardedBlock& block = found->second;
    if ((block.reported & finding) != 0) return;
    block.reported = static_cast<uint8_t>(block.reported | finding);
    report = damage_report(block, arena_.device(), finding, damage);
  }
  publish(report);
}

}  // namespace spillway
