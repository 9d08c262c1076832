// bench_allocator as a command: every case runs, and what it does not know it refuses in one line.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace {

struct Outcome {
  int code = -1;
  std::string output;  // of both streams
};

Outcome run(const std::string& arguments) {
  // Spillway lives as long as the process, and a leak checker does not look into the pages where it keeps its
  // tables.
  const std::string command = std::string("ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\" '") +
                              SPILLWAY_BENCH_ALLOCATOR + "' " + arguments + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t got = 0; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) outcome.output.append(buffer, got);
  const int state = pclose(pipe);
  outcome.code = WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  return outcome;
}

void expect_refused(const std::string& arguments, const std::string& word) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_NE(outcome.output.find(word), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("bench_allocator: "), std::string::npos) << outcome.output;
}

TEST(BenchAllocatorTest, EveryCaseRuns) {
  const Outcome outcome = run("--smoke");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (const char* name : {"pair/512B ", "pair/1GiB ", "hit/4MiB ", "mixed ", "threads/own-streams/mixed ",
                           "threads/one-stream/pair-64KiB "}) {
    EXPECT_NE(outcome.output.find(name), std::string::npos) << name << " is missing in\n" << outcome.output;
  }
}

TEST(BenchAllocatorTest, RefusesWhatItDoesNotKnow) {
  expect_refused("--banana", "--banana");
  expect_refused("--smoke --filter banana", "banana");
  expect_refused("--repeats 0", "--repeats");
  expect_refused("--seconds banana", "--seconds");
}

TEST(BenchAllocatorTest, SaysSoWhereTheDriverIsMissing) {
  const Outcome outcome = run("--smoke --driver /nowhere/libcuda.so.1");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_EQ(outcome.output.rfind("bench_allocator: ", 0), 0U) << outcome.output;
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
}

TEST(BenchAllocatorTest, AFilterPicksCases) {
  const Outcome outcome = run("--smoke --ratios --filter pair/4KiB");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("pair/4KiB"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("pair/512B"), std::string::npos) << outcome.output;
}

}  // namespace
