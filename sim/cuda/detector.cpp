#include "sim/cuda/detector.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <iterator>

namespace spillway::sim {
namespace {

constexpr size_t kReportsKept = 1000;

std::string hex(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%" PRIx64, value);
  return text;
}

std::string range_text(uint64_t start, uint64_t bytes) {
  return hex(start) + " (" + std::to_string(bytes) + " bytes)";
}

std::string actor_text(const Actor& actor, bool write) {
  return std::string(actor.what) + " on stream " + std::to_string(actor.stream_id) +
         (write ? " writes " : " reads ");
}

}  // namespace

void Detector::reset(bool enabled, const VectorClock* host) {
  enabled_ = enabled;
  host_ = host;
  clear_reports();
  notes_.clear();
  names_.clear();
}

void Detector::clear_reports() {
  reports_.clear();
  count_ = 0;
}

void Detector::report(std::string text) {
  if (!enabled_) return;
  ++count_;
  if (reports_.size() < kReportsKept) reports_.push_back(std::move(text));
}

std::string Detector::describe(const Access& access) const {
  const auto found = names_.find(access.timeline);
  const std::string stream = found == names_.end() ? "?" : std::to_string(found->second);
  return "work " + std::to_string(access.position) + " of stream " + stream;
}

void Detector::grid(Memory& memory, const std::set<std::pair<int, int>>& peers,
                    const std::vector<RangeAccess>& accesses, const Actor& actor, const VectorClock& clock) {
  for (const RangeAccess& access : accesses) {
    if (access.bytes == 0 || access.host_pageable) continue;
    check_notes(access, actor);
    check_access(memory, peers, access, actor, clock);
  }
}

void Detector::check_notes(const RangeAccess& access, const Actor& actor) {
  if (notes_.empty()) return;
  auto it = notes_.upper_bound(access.start);
  if (it != notes_.begin() && std::prev(it)->second.end > access.start) --it;
  for (; it != notes_.end() && it->first < access.start + access.bytes; ++it) {
    if (!it->second.freed) continue;
    report("use after free: " + actor_text(actor, access.write) + range_text(access.start, access.bytes) +
           ", of which the block at " + hex(it->first) + " of stream " +
           std::to_string(it->second.stream_id) + " was freed");
    return;
  }
}

bool Detector::check_access(Memory& memory, const std::set<std::pair<int, int>>& peers,
                            const RangeAccess& access, const Actor& actor, const VectorClock& clock) {
  const std::string act = actor_text(actor, access.write);
  uint64_t at = access.start;
  const uint64_t end = access.start + access.bytes;
  while (at < end) {
    Mapping* mapping = memory.find(at);
    if (mapping == nullptr || !mapping->physical->committed) {
      report("use of unmapped memory: " + act + range_text(access.start, access.bytes) + ", of which " +
             hex(at) + " is " + memory.fate_of(at));
      return false;
    }
    Physical& physical = *mapping->physical;
    const int device = access.device < 0 ? actor.device : access.device;
    const uint8_t granted = mapping->access[static_cast<size_t>(device)];
    const bool peer =
        physical.kind == Physical::Kind::kAllocation && peers.contains({device, physical.device});
    const uint8_t needed = access.write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    if (!peer && (granted & needed) != needed) {
      report("use without access: " + act + range_text(access.start, access.bytes) + ", of which " + hex(at) +
             " grants device " + std::to_string(device) +
             (granted == 0 ? " no access" : " read access only"));
      return false;
    }
    const uint64_t bytes = std::min(end, mapping->end()) - at;
    const Access by{actor.timeline, actor.position, mapping->view()};
    const Conflict conflict =
        physical.shadow.access(at - mapping->start, bytes, access.write, by, clock, *host_);
    if (conflict.kind == Conflict::Kind::kAlias) {
      report("alias within one grid: " + act + range_text(at, bytes) +
             " and touches the same bytes through the view at " + hex(conflict.earlier.view));
      return false;
    }
    if (conflict.kind == Conflict::Kind::kRace) {
      report("race: " + act + range_text(at, bytes) + " without an order after " +
             describe(conflict.earlier) + ", which " + (conflict.earlier_wrote ? "writes" : "reads") +
             " the same bytes through the view at " + hex(conflict.earlier.view));
      return false;
    }
    at += bytes;
  }
  return true;
}

void Detector::before_unmap(const Mapping& mapping) {
  if (!enabled_) return;
  const Access pending = mapping.physical->shadow.unfinished(mapping.view(), 0, mapping.bytes, *host_);
  if (pending.timeline == kNoTimeline) return;
  report("unmap of memory in use: " + range_text(mapping.start, mapping.bytes) + " while " +
         describe(pending) + " may still use it");
}

void Detector::host_access(Memory& memory, uint64_t start, uint64_t bytes, bool write) {
  if (!enabled_) return;
  uint64_t at = start;
  while (at < start + bytes) {
    Mapping* mapping = memory.find(at);
    if (mapping == nullptr) {
      report("host access of unmapped memory: " + range_text(start, bytes) + ", of which " + hex(at) +
             " is " + memory.fate_of(at));
      return;
    }
    const uint64_t part = std::min(start + bytes, mapping->end()) - at;
    const Shadow& shadow = mapping->physical->shadow;
    const uint64_t offset = at - mapping->start;
    const Access pending = write ? shadow.unfinished(0, offset, part, *host_, true)
                                 : shadow.unfinished_write(offset, part, *host_);
    if (pending.timeline != kNoTimeline) {
      report(std::string("race: the host ") + (write ? "writes " : "reads ") + range_text(at, part) +
             " while " + describe(pending) + " may still use it");
      return;
    }
    at += part;
  }
}

void Detector::note_alloc(uint64_t start, uint64_t bytes, uint64_t stream_id) {
  auto it = notes_.upper_bound(start);
  if (it != notes_.begin() && std::prev(it)->second.end > start) --it;
  while (it != notes_.end() && it->first < start + bytes) {
    const uint64_t old_start = it->first;
    const Note old = it->second;
    if (!old.freed) {
      report("two owners: " + range_text(start, bytes) + " of stream " + std::to_string(stream_id) +
             " overlaps the live block at " + hex(old_start) + " of stream " + std::to_string(old.stream_id));
    }
    it = notes_.erase(it);
    // What the new block leaves of an old, freed one stays freed.
    if (old_start < start) notes_.emplace(old_start, Note{start, old.stream_id, old.freed});
    if (old.end > start + bytes) {
      it = notes_.emplace(start + bytes, Note{old.end, old.stream_id, old.freed}).first;
    }
  }
  notes_[start] = Note{start + bytes, stream_id, false};
}

void Detector::note_free(uint64_t start) {
  const auto found = notes_.find(start);
  if (found == notes_.end() || found->second.freed) {
    report("free of what is not a live block: " + hex(start));
    return;
  }
  found->second.freed = true;
}

}  // namespace spillway::sim
