#include "stats/trace_writer.h"

#include <pthread.h>

#include <csignal>
#include <utility>

#include "stats/symbol.h"

namespace spillway {
namespace {

constexpr uint64_t kPeriodMs = 100;

}  // namespace

TraceWriter::TraceWriter(Tracer& tracer, std::unique_ptr<TraceFile> file,
                         std::function<void(const std::string&)> complain)
    : tracer_(tracer), file_(std::move(file)), complain_(std::move(complain)) {}

Result<std::unique_ptr<TraceWriter>> TraceWriter::start(Tracer& tracer, const TraceFileOptions& options,
                                                        std::function<void(const std::string&)> complain) {
  Result<std::unique_ptr<TraceFile>> file = TraceFile::create(options);
  if (!file.ok()) return file.take_status();
  std::unique_ptr<TraceWriter> writer(new TraceWriter(tracer, std::move(file.value()), std::move(complain)));
  writer->write_clock();
  // The program's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    writer->thread_ = std::thread([self = writer.get()] { self->run(); });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return Status::io(std::string("no thread for the trace: ") + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return writer;
}

void TraceWriter::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_relaxed);
  tracer_.stop_waiting();
  thread_.join();
}

void TraceWriter::run() {
  for (bool last = false; !last;) {
    tracer_.wait(kPeriodMs);
    last = stopping_.load(std::memory_order_relaxed);
    try {
      pump();
      if (last) {
        TraceRecord end;
        end.kind = TraceKind::kEnd;
        end.ticks = trace_ticks(tracer_.ticks_are_steady());
        file_->add(end);
      }
      if (Status status = file_->flush(); !status.ok() && !std::exchange(failed_, true)) {
        complain_(status.text());
      }
    } catch (const std::bad_alloc&) {
      if (!std::exchange(failed_, true)) complain_("the host has no memory left for the trace");
    }
  }
}

void TraceWriter::pump() {
  // What is written meanwhile waits for the next turn, so that turns do not overlap in time.
  tracer_.collect(trace_ticks(tracer_.ticks_are_steady()), notes_, records_);
  write_new_stacks();
  for (const Tracer::Note& note : notes_) {
    if (has_payload(note.record.kind)) {
      file_->add(note.record, note.payload);
    } else {
      file_->add(note.record);
    }
  }
  for (const TraceRecord& record : records_) file_->add(record);
  if (!notes_.empty() || !records_.empty()) write_clock();
  if (const uint64_t dropped = tracer_.dropped(); dropped != told_dropped_) {
    TraceRecord lost;
    lost.kind = TraceKind::kDropped;
    lost.ticks = trace_ticks(tracer_.ticks_are_steady());
    lost.block_bytes = dropped - std::exchange(told_dropped_, dropped);
    file_->add(lost);
  }
}

void TraceWriter::write_clock() {
  TraceRecord clock;
  clock.kind = TraceKind::kClock;
  clock.ticks = trace_ticks(tracer_.ticks_are_steady());
  clock.address = clock_ns(CLOCK_REALTIME);
  file_->add(clock);
}

uint32_t TraceWriter::text_number(const std::string& text) {
  const auto [found, is_new] = texts_.try_emplace(text, static_cast<uint32_t>(texts_.size() + 1));
  if (is_new) {
    TraceRecord record;
    record.kind = TraceKind::kText;
    record.stack = found->second;
    file_->add(record, text);
  }
  return found->second;
}

uint32_t TraceWriter::frame_number(const StackFrame& frame) {
  if (frame.address != 0) {
    if (const auto found = frames_by_address_.find(frame.address); found != frames_by_address_.end())
      return found->second;
    return frames_by_address_[frame.address] = frame_number(named_frame(frame));
  }
  const uint32_t function = text_number(frame.function);
  const uint32_t file = text_number(frame.file);
  const auto [found, is_new] =
      frames_.try_emplace({function, file, frame.line}, static_cast<uint32_t>(frames_.size() + 1));
  if (is_new) {
    TraceRecord record;
    record.kind = TraceKind::kFrame;
    record.stack = found->second;
    record.address = function;
    record.stream = file;
    record.block_bytes = frame.line;
    file_->define(record);
  }
  return found->second;
}

void TraceWriter::write_new_stacks() {
  for (const StackTable::Stack& stack : tracer_.stacks().take_added()) {
    std::string numbers;
    for (const StackFrame& frame : stack.frames) {
      const uint32_t number = frame_number(frame);
      numbers.append(reinterpret_cast<const char*>(&number), sizeof(number));
    }
    TraceRecord record;
    record.kind = TraceKind::kStack;
    record.stack = stack.number;
    file_->add(record, numbers);
  }
}

}  // namespace spillway
