// A program that is recorded, and what its trace says afterwards.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cli/trace/recording.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"

namespace spillway::test {
namespace {

class TraceTest : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }
  Environment with(const std::string& options = "") const {
    return {{"SPILLWAY_CONF", "trace:" + file("trace.zst") + options}};
  }
  Recording recorded(const std::string& name = "trace.zst") const {
    Result<Recording> recording = read_recording(file(name));
    EXPECT_TRUE(recording.ok()) << recording.status().text();
    return recording.ok() ? std::move(recording.value()) : Recording{};
  }
  static uint64_t count(const Recording& recording, TraceKind kind) {
    return static_cast<uint64_t>(std::count_if(recording.events.begin(), recording.events.end(),
                                               [&](const TraceRecord& event) { return event.kind == kind; }));
  }

  const Folder folder_;
};

void* allocate(size_t bytes, CUstream stream = nullptr) {
  void* block = nullptr;
  SPW_CHECK(spw_alloc(bytes, 0, stream, &block) == SPW_OK);
  return block;
}

// Allocates and frees at random, on two streams, some blocks used by both.
void run_at_random(uint32_t seed, int steps) {
  const auto driver = start_device();
  CUstream streams[2] = {};
  for (CUstream& stream : streams) {
    SPW_CHECK(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  }
  std::mt19937 random(seed);
  std::vector<void*> live;
  for (int step = 0; step < steps; ++step) {
    if (live.empty() || random() % 100 < 52) {
      const size_t bytes = size_t{1} << (random() % 24);
      live.push_back(allocate(bytes + random() % bytes, streams[random() % 2]));
      if (random() % 10 == 0) SPW_CHECK(spw_record_stream(live.back(), streams[random() % 2]) == SPW_OK);
    } else {
      std::swap(live[random() % live.size()], live.back());
      SPW_CHECK(spw_free(live.back()) == SPW_OK);
      live.pop_back();
    }
  }
}

void write_stats(const std::string& path) {
  const spw_stats stats = stats_of(0);
  std::ofstream(path).write(reinterpret_cast<const char*>(&stats), sizeof stats);
}

TEST_F(TraceTest, SaysWhatTheCountersSay) {
  in_child(with(), [&] {
    run_at_random(1, 8000);
    write_stats(file("stats"));
  });
  spw_stats stats;
  std::ifstream(file("stats")).read(reinterpret_cast<char*>(&stats), sizeof stats);
  const Recording recording = recorded();
  EXPECT_TRUE(recording.ended);
  EXPECT_EQ(recording.missing, "");
  EXPECT_EQ(recording.dropped, 0u);
  EXPECT_EQ(count(recording, TraceKind::kAllocate), static_cast<uint64_t>(stats.allocation.all.allocated));
  EXPECT_EQ(count(recording, TraceKind::kFree) + count(recording, TraceKind::kFreeRequested),
            static_cast<uint64_t>(stats.allocation.all.freed));

  uint64_t reserved = 0;
  uint64_t allocated_bytes = 0;
  for (const TraceRecord& event : recording.events) {
    if (event.kind == TraceKind::kReserve) reserved += event.requested_bytes - event.block_bytes;
    if (event.kind == TraceKind::kAllocate) allocated_bytes += event.block_bytes;
  }
  EXPECT_EQ(reserved, static_cast<uint64_t>(stats.reserved_bytes.all.current));
  EXPECT_EQ(allocated_bytes, static_cast<uint64_t>(stats.allocated_bytes.all.allocated));

  const Result<Trace> trace = to_trace(recording);
  ASSERT_TRUE(trace.ok()) << trace.status().text();
  EXPECT_EQ(trace.value().peak_live_bytes, static_cast<uint64_t>(stats.requested_bytes.all.peak));
  uint64_t live = 0;
  for (const TraceEvent& event : trace.value().events) {
    if (event.kind == TraceEvent::Kind::kAllocate) live += trace.value().blocks[event.block].bytes;
    if (event.kind == TraceEvent::Kind::kFree || event.kind == TraceEvent::Kind::kFreeCompleted)
      live -= trace.value().blocks[event.block].bytes;
  }
  EXPECT_EQ(live, static_cast<uint64_t>(stats.requested_bytes.all.current));
}

// Ends by SIGKILL, as soon as the file has grown.
void run_until_killed(const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("SPILLWAY_CONF", ("trace:" + path).c_str(), 1);
    const auto driver = start_device();
    // A frame is whole once the next one has begun.
    uintmax_t size = 0;
    for (uint64_t i = 0, grown = 0; grown < 3; ++i) {
      std::error_code none;
      const uintmax_t now = std::filesystem::file_size(path, none);
      if (!none && now > size) ++grown;
      if (!none) size = now;
      for (int k = 0; k < 1000; ++k)
        SPW_CHECK(spw_free(allocate(1 + (i * 977 + static_cast<uint64_t>(k)) % 100000)) == SPW_OK);
      usleep(1000);
    }
    raise(SIGKILL);
  }
  int state = 0;
  waitpid(child, &state, 0);
  EXPECT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL) << state;
}

TEST_F(TraceTest, OfAKilledProgramReads) {
  run_until_killed(file("trace.zst"));
  const Recording recording = recorded();
  EXPECT_FALSE(recording.ended);
  EXPECT_GT(count(recording, TraceKind::kAllocate), 0u);
  EXPECT_TRUE(to_trace(recording).ok());
}

TEST_F(TraceTest, CutAnywhereGivesItsBeginning) {
  run_until_killed(file("trace.zst"));
  const size_t all = recorded().events.size();
  const std::string data = folder_.read("trace.zst");
  const size_t first_frame = ZSTD_findFrameCompressedSize(data.data(), data.size());
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const size_t length = 1 + random() % data.size();
    const Result<Recording> cut = parse_trace_file(std::string_view(data).substr(0, length));
    if (!cut.ok()) {
      EXPECT_LT(length, first_frame) << cut.status().text();
      continue;
    }
    EXPECT_LE(cut.value().events.size(), all);
    const bool is_whole = cut.value().events.size() == all || !cut.value().missing.empty();
    EXPECT_TRUE(is_whole || !cut.value().ended);
  }
}

// The size of the file once it is another than `before`: within half a minute.
uintmax_t wait_until_written(const std::string& path, uintmax_t before) {
  uintmax_t size = before;
  for (int i = 0; i < 6000 && size == before; ++i) {
    usleep(5000);
    std::error_code missing;  // as it is for a moment where it is begun anew
    const uintmax_t now = std::filesystem::file_size(path, missing);
    if (!missing) size = now;
  }
  SPW_CHECK(size != before);
  return size;
}

TEST_F(TraceTest, ATailIsBoundedAndKnowsWhatLived) {
  in_child(with(",trace_tail:512KiB"), [&] {
    const auto driver = start_device();
    std::vector<void*> kept;
    for (int i = 0; i < 100; ++i) kept.push_back(allocate(3 << 20));
    std::mt19937 random(3);
    uintmax_t size = 0;
    // Until the older half has been replaced twice. Each turn waits for the writer: what it can be behind by,
    // the records of four turns, has room in the ring.
    for (int begun = 0; begun < 3;) {
      std::vector<void*> blocks;
      for (int k = 0; k < 2000; ++k) blocks.push_back(allocate(1 + random() % 100000));
      std::shuffle(blocks.begin(), blocks.end(), random);
      for (void* block : blocks) SPW_CHECK(spw_free(block) == SPW_OK);
      const uintmax_t before = std::exchange(size, wait_until_written(file("trace.zst"), size));
      if (size > before) continue;
      if (++begun == 1) SPW_CHECK(spw_free(kept.back()) == SPW_OK);
    }
  });
  EXPECT_LT(std::filesystem::file_size(file("trace.zst")), 1u << 20);
  EXPECT_LT(std::filesystem::file_size(file("trace.zst.1")), 1u << 20);
  const Recording recording = recorded();
  EXPECT_EQ(recording.dropped, 0u);
  EXPECT_GE(count(recording, TraceKind::kLive), 99u);
  const Result<Trace> trace = to_trace(recording);
  ASSERT_TRUE(trace.ok()) << trace.status().text();
}

TEST_F(TraceTest, AChildOfForkWritesNothing) {
  in_child(with(), [&] {
    const auto driver = start_device();
    void* block = allocate(1000);
    const pid_t child = fork();
    if (child == 0) {
      SPW_CHECK(spw_trace_mark("of the child") == SPW_OK);
      std::exit(0);
    }
    int state = 0;
    waitpid(child, &state, 0);
    SPW_CHECK(state == 0);
    SPW_CHECK(spw_trace_mark("of the parent") == SPW_OK);
    SPW_CHECK(spw_free(block) == SPW_OK);
  });
  const Recording recording = recorded();
  EXPECT_TRUE(recording.ended);
  EXPECT_EQ(recording.marks, std::vector<std::string>{"of the parent"});
  EXPECT_EQ(count(recording, TraceKind::kFree), 1u);
}

TEST_F(TraceTest, MarksAndTagsAreOfTheirThread) {
  in_child(with(), [&] {
    const auto driver = start_device();
    void* first = allocate(100);
    SPW_CHECK(spw_trace_mark("step 1") == SPW_OK);
    SPW_CHECK(spw_trace_tag("weights") == SPW_OK);
    void* second = allocate(200);
    void* other = nullptr;
    std::thread([&] { SPW_CHECK(spw_alloc(300, 0, nullptr, &other) == SPW_OK); }).join();
    SPW_CHECK(spw_trace_tag(nullptr) == SPW_OK);
    void* last = allocate(400);
    SPW_CHECK(spw_trace_mark(nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    for (void* block : {first, second, other, last}) SPW_CHECK(spw_free(block) == SPW_OK);
  });
  const Recording recording = recorded();
  EXPECT_EQ(recording.marks, std::vector<std::string>{"step 1"});
  std::map<uint64_t, std::string> tags;
  for (const TraceRecord& event : recording.events) {
    if (event.kind != TraceKind::kAllocate) continue;
    const auto found = recording.tags.find(event.tag);
    tags[event.requested_bytes] = found == recording.tags.end() ? "" : found->second;
  }
  EXPECT_EQ(tags, (std::map<uint64_t, std::string>{{100, ""}, {200, "weights"}, {300, ""}, {400, ""}}));
}

[[gnu::noinline]] void* allocate_here() {
  void* block = allocate(1000);
  asm volatile("");
  return block;
}

TEST_F(TraceTest, StacksTellCallSitesApart) {
  in_child(with(",trace_stacks:cpp"), [&] {
    const auto driver = start_device();
    for (int i = 0; i < 10; ++i) SPW_CHECK(spw_free(allocate_here()) == SPW_OK);
    SPW_CHECK(spw_free(allocate(5000)) == SPW_OK);
  });
  const Recording recording = recorded();
  std::map<uint64_t, std::vector<uint32_t>> stacks;
  for (const TraceRecord& event : recording.events) {
    if (event.kind == TraceKind::kAllocate) stacks[event.requested_bytes].push_back(event.stack);
  }
  ASSERT_EQ(stacks[1000].size(), 10u);
  EXPECT_NE(stacks[1000].front(), 0u);
  EXPECT_EQ(std::set(stacks[1000].begin() + 1, stacks[1000].end()).size(), 1u);
  EXPECT_NE(stacks[5000].front(), stacks[1000].back());
  const auto found = recording.stacks.find(stacks[1000].front());
  ASSERT_NE(found, recording.stacks.end());
  ASSERT_GE(found->second.size(), 3u);
  for (const uint32_t frame : found->second) EXPECT_NE(recording.frames[frame].file, "");
}

TEST_F(TraceTest, WithoutAFileTheProgramRuns) {
  in_child(
      {{"SPILLWAY_CONF", "trace:/nonexistent/trace.zst"}},
      [] {
        const auto driver = start_device();
        SPW_CHECK(spw_free(allocate(1000)) == SPW_OK);
        SPW_CHECK(spw_trace_mark("nowhere") == SPW_OK);
      },
      "spillway: trace: /nonexistent/trace.zst: cannot create it: No such file or directory");
}

TEST_F(TraceTest, WithoutRoomItEndsWithAWholeFrameAndTheProgramRuns) {
  Environment environment = with();
  // The limit is for the memory of a simulated device too.
  environment["SPILLWAY_SIM"] = environment["SPILLWAY_UNCONTROLLED"] = "backing:none";
  in_child(
      environment,
      [] {
        const rlimit few{16384, 16384};
        SPW_CHECK(setrlimit(RLIMIT_FSIZE, &few) == 0);
        std::signal(SIGXFSZ, SIG_IGN);
        run_at_random(2, 20000);
      },
      "trace.zst: cannot write it: File too large");
  const Recording recording = recorded();
  EXPECT_EQ(recording.missing, "");
  EXPECT_FALSE(recording.ended);
}

TEST_F(TraceTest, IsOffUnlessAsked) {
  in_child({}, [] {
    const auto driver = start_device();
    SPW_CHECK(spw_trace_mark("nowhere") == SPW_OK && spw_trace_tag("nothing") == SPW_OK);
    SPW_CHECK(spw_free(allocate(1000)) == SPW_OK);
  });
}

TEST_F(TraceTest, ThePathTakesTheProcessAndTheRank) {
  in_child({{"SPILLWAY_CONF", "trace:" + file("%r-%p.zst")}, {"RANK", "3"}}, [] {
    const auto driver = start_device();
    SPW_CHECK(spw_free(allocate(1000)) == SPW_OK);
  });
  const std::vector<std::string> names = folder_.names();
  ASSERT_EQ(names.size(), 1U);
  EXPECT_TRUE(names.front().starts_with("3-")) << names.front();
  EXPECT_EQ(recorded(names.front()).rank, 3);
}

}  // namespace
}  // namespace spillway::test
