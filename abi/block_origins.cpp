#include "abi/block_origins.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>

#include "abi/python_frames.h"
#include "abi/stack_capture.h"
#include "stats/call_site.h"
#include "stats/oom_report.h"
#include "stats/stack_table.h"
#include "stats/symbol.h"

namespace spillway {
namespace {

using Frames = std::vector<StackFrame>;

// Holds the stacks so far, by number.
struct Origins {
  StackTable table{BlockOrigins::kMostStacks};
  BlockingMutex mutex;
  std::map<uint32_t, Frames> frames SPW_GUARDED_BY(mutex);

  std::map<uint32_t, Frames> named(const std::set<uint32_t>& numbers) {
    const Lock lock(mutex);
    for (StackTable::Stack& stack : table.take_added()) frames[stack.number] = std::move(stack.frames);
    std::map<uint32_t, Frames> out;
    for (const uint32_t number : numbers) {
      const auto found = frames.find(number);
      if (found == frames.end()) continue;
      for (StackFrame& frame : found->second) frame = named_frame(frame);
      out.insert(*found);
    }
    return out;
  }
};

// Never freed: programs allocate until their very end.
std::atomic<Origins*> published{nullptr};

// For Python's programs, whose lines would be known.
std::string how_to_know() {
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized") == nullptr) return {};
  return "\n  which lines hold it: SPILLWAY_CONF=dump_stacks:on says it here, "
         "SPILLWAY_STATS=memory-%r.json in a dump for spillway report too";
}

}  // namespace

void BlockOrigins::start() {
  prepare_stacks();
  static Origins& origins = *new Origins;
  published.store(&origins, std::memory_order_release);
}

bool BlockOrigins::are_noted() {
  return published.load(std::memory_order_relaxed) != nullptr;
}

uint32_t BlockOrigins::capture(const void* caller) noexcept {
  Origins& origins = *published.load(std::memory_order_acquire);
  const uint32_t python = capture_stack(origins.table, TraceStacks::kPython, caller);
  return python != 0 ? python : capture_stack(origins.table, TraceStacks::kCpp, caller);
}

uint32_t BlockOrigins::capture_in_driver(const void* caller) noexcept {
  return PythonLock::is_held()
             ? capture(caller)
             : capture_stack(published.load(std::memory_order_acquire)->table, TraceStacks::kCpp, caller);
}

void BlockOrigins::name_stacks(Dump& dump) {
  Origins* const origins = published.load(std::memory_order_acquire);
  const auto for_each_block = [&](auto visit) {
    for (DumpDevice& device : dump.devices) {
      for (SegmentRow& segment : device.segments) {
        for (BlockRow& block : segment.blocks) visit(block);
      }
    }
  };
  std::set<uint32_t> used;
  for_each_block([&](const BlockRow& block) {
    if (block.stack != 0) used.insert(block.stack);
  });
  if (origins == nullptr || used.empty()) return;
  std::map<uint32_t, uint32_t> anew;
  for (auto& [number, frames] : origins->named(used)) {
    dump.stacks.push_back(std::move(frames));
    anew[number] = static_cast<uint32_t>(dump.stacks.size());
  }
  for_each_block([&](BlockRow& block) { block.stack = anew.contains(block.stack) ? anew[block.stack] : 0; });
}

std::string BlockOrigins::largest_text(const std::vector<SegmentRow>& segments) {
  Origins* const origins = published.load(std::memory_order_acquire);
  if (origins == nullptr) return how_to_know();
  std::map<uint32_t, OomSite> by_stack;
  std::set<uint32_t> used;
  for (const SegmentRow& segment : segments) {
    for (const BlockRow& block : segment.blocks) {
      if (block.stack == 0) continue;
      used.insert(block.stack);
      OomSite& site = by_stack[block.stack];
      site.bytes += static_cast<int64_t>(block.requested_bytes);
      ++site.blocks;
    }
  }
  std::map<std::string, OomSite> by_site;
  for (const auto& [number, frames] : origins->named(used)) {
    CallSite call;
    for (const StackFrame& frame : frames)
      call.add(frame.function, frame.file, static_cast<int64_t>(frame.line));
    if (call.text().empty()) continue;
    OomSite& site = by_site[call.text()];
    site.bytes += by_stack[number].bytes;
    site.blocks += by_stack[number].blocks;
  }
  std::vector<OomSite> sites;
  for (auto& [name, site] : by_site) {
    site.name = name;
    sites.push_back(site);
  }
  return oom_sites(std::move(sites));
}

}  // namespace spillway
