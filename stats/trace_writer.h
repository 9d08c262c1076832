// The thread that takes what a Tracer recorded and puts it into a file.
//
// It looks ten times a second, and at once when a ring is half full. After an error of the file it goes on
// taking, so that nothing else changes for the program. The children of fork have no such thread, and write
// nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "stats/trace_file.h"
#include "stats/tracer.h"

namespace spillway {

class TraceWriter {
 public:
  // `complain` is called once, from any thread, with what went wrong with the file. Errors: io.
  static Result<std::unique_ptr<TraceWriter>> start(Tracer& tracer, const TraceFileOptions& options,
                                                    std::function<void(const std::string&)> complain);
  ~TraceWriter() { stop(); }
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Everything recorded before the call is in the file when it returns. Again is ok; not from two threads.
  void stop();

 private:
  TraceWriter(Tracer& tracer, std::unique_ptr<TraceFile> file,
              std::function<void(const std::string&)> complain);
  void run();
  void pump();
  void write_clock();
  void write_new_stacks();
  uint32_t text_number(const std::string& text);
  uint32_t frame_number(const StackFrame& frame);

  Tracer& tracer_;
  const std::unique_ptr<TraceFile> file_;
  const std::function<void(const std::string&)> complain_;
  bool failed_ = false;
  uint64_t told_dropped_ = 0;
  std::vector<Tracer::Note> notes_;
  std::vector<TraceRecord> records_;
  std::map<std::string, uint32_t> texts_;
  std::map<std::tuple<uint32_t, uint32_t, uint64_t>, uint32_t> frames_;  // by texts and line
  std::map<uint64_t, uint32_t> frames_by_address_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace spillway
