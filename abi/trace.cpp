#include "abi/trace.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>

#include "abi/boundary.h"
#include "abi/dump_path.h"
#include "abi/process.h"
#include "abi/stack_capture.h"
#include "include/spillway/spillway.h"
#include "stats/dump.h"
#include "stats/trace_writer.h"

namespace spillway {
namespace {

// Lives to the end of the process: heaps write to its rings as long as they like.
struct Trace {
  Tracer tracer;
  std::unique_ptr<TraceWriter> writer;
  pid_t process = getpid();
};

std::atomic<Trace*> published{nullptr};
std::atomic<TraceStacks> stacks{TraceStacks::kOff};

void complain_of_trace(const std::string& text) {
  std::fprintf(stderr, "spillway: trace: %s\n", text.c_str());
}

// A child of fork has no writer.
void stop_at_exit() {
  Trace* trace = published.load(std::memory_order_acquire);
  if (trace->process == getpid()) trace->writer->stop();
}

Trace* begin(const Config& config) {
  TraceFileOptions options;
  options.path = expand_dump_path(config.trace, -1, std::time(nullptr));
  options.most_bytes = config.trace_tail.of(0);
  options.library_version = spw_version();
  options.process_id = getpid();
  options.rank = process_rank();
  auto trace = std::make_unique<Trace>();
  Result<std::unique_ptr<TraceWriter>> writer = TraceWriter::start(trace->tracer, options, complain_of_trace);
  if (!writer.ok()) {
    complain_of_trace(writer.status().text());
    return nullptr;
  }
  trace->writer = std::move(writer.value());
  return trace.release();
}

}  // namespace

Tracer* ProcessTrace::start(const Config& config) {
  static std::once_flag once;
  if (config.trace.empty()) return tracer();
  std::call_once(once, [&] {
    Trace* trace = begin(config);
    if (trace == nullptr) return;
    published.store(trace, std::memory_order_release);
    stacks.store(config.trace_stacks, std::memory_order_relaxed);
    std::atexit(stop_at_exit);
  });
  return tracer();
}

Tracer* ProcessTrace::tracer() {
  Trace* trace = published.load(std::memory_order_acquire);
  return trace == nullptr ? nullptr : &trace->tracer;
}

bool ProcessTrace::notes_stacks() {
  return stacks.load(std::memory_order_relaxed) != TraceStacks::kOff;
}

void ProcessTrace::note_stack(const void* caller) noexcept {
  if (!notes_stacks()) return;
  trace_thread.stack = capture_stack(tracer()->stacks(), stacks.load(std::memory_order_relaxed), caller);
}

}  // namespace spillway

using spillway::ProcessTrace;
using spillway::Tracer;

namespace {

// A mark may come before the first device is used.
Tracer* begun() {
  Tracer* tracer = ProcessTrace::tracer();
  return tracer != nullptr ? tracer : ProcessTrace::start(spillway::Process::instance().config());
}

}  // namespace

extern "C" {

spw_status spw_trace_mark(const char* text) {
  return spillway::guarded([&] {
    if (text == nullptr) return spillway::is_null("text");
    if (Tracer* tracer = begun()) tracer->mark(text);
    return spillway::Status();
  });
}

spw_status spw_trace_tag(const char* name) {
  return spillway::guarded([&] {
    Tracer* tracer = begun();
    if (tracer != nullptr) spillway::trace_thread.tag = name == nullptr ? uint16_t{0} : tracer->tag(name);
    return spillway::Status();
  });
}

}  // extern "C"
