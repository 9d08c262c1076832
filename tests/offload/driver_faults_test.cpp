// Every call of the driver fails at each place of scripted programs over regions, stashes and memory that is
// placed on the host: nothing is lost, nothing hangs, and what the error left can be done afterwards. Which
// calls those are is counted in a run without a fault.
#include <memory>

#include "offload/host_overflow.h"
#include "offload/spill/device_tiers.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"
#include "tests/support/thorough.h"

namespace spillway::test {
namespace {

// A program on a device of its own. run() is what faults may come in; what it does is tried again, once,
// where it failed, with the device's faults cleared.
class Program {
 public:
  explicit Program(const std::string& configuration)
      : device(configuration), pinned(*device.driver, {}), arena(device.arena()) {}
  virtual ~Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  virtual void run() = 0;
  // With no fault any more: that everything is as it should be.
  virtual void check() = 0;

  // Tells whether an error that lasts came, and was told: nothing more is to be tried then.
  bool is_over() const { return lasts && has_failed; }

  Device device;
  PinnedArena pinned;
  std::unique_ptr<Arena> arena;
  bool lasts = false;
  bool has_failed = false;

 protected:
  // Runs `attempt`, and again where it failed. What must hold in between is `meanwhile`'s.
  void must(
      const std::function<Status()>& attempt, const std::function<void()>& meanwhile = [] {}) {
    if (is_over()) return;
    Status status = attempt();
    if (status.ok()) return;
    has_failed = true;
    // A question that fails may be answered carefully: the stream might be captured, or be none.
    EXPECT_TRUE(status.code() != SPW_ERROR_DATA_LOST && status.code() != SPW_ERROR_INTERNAL) << status.text();
    EXPECT_FALSE(status.text().empty());
    if (lasts) return;
    device.clear_faults();
    meanwhile();
    SPW_EXPECT_OK(attempt());
  }
  void write(CUdeviceptr to, const std::vector<char>& bytes) const {
    EXPECT_EQ(device.driver->cuMemcpyHtoD(to, bytes.data(), bytes.size()), CUDA_SUCCESS);
  }
  bool holds(CUdeviceptr from, const std::vector<char>& expected) const {
    std::vector<char> bytes(expected.size());
    EXPECT_EQ(device.driver->cuMemcpyDtoH(bytes.data(), from, bytes.size()), CUDA_SUCCESS);
    return bytes == expected;
  }
  static CUdeviceptr va_of(void* block) { return reinterpret_cast<CUdeviceptr>(block); }
};

// With the tiers below the device.
class SpillingProgram : public Program {
 public:
  SpillingProgram() : Program("capacity:64MiB,completion:late") {
    DiskTierOptions options = disk_options(directory_.path(), false);
    options.file.growth_bytes = kExtentBytes;
    options.buffers = 2;
    Result<std::unique_ptr<DeviceTiers>> made =
        DeviceTiers::create(*device.driver, *arena, pinned, options, Codec::kNone);
    if (!made.ok()) throw std::runtime_error(made.status().text());
    tiers_ = std::move(made.value());
  }

 protected:
  const Folder directory_;
  std::unique_ptr<DeviceTiers> tiers_;
};

class RegionProgram : public SpillingProgram {
 public:
  RegionProgram() {
    SPW_EXPECT_OK(regions().begin("a"));
    for (const size_t bytes : {kMiB, 5 * kMiB}) {
      blocks_.emplace_back(must_allocate(*arena, bytes, nullptr),
                           TestRegion::pattern(bytes, static_cast<uint32_t>(bytes)));
      write(va_of(blocks_.back().first), blocks_.back().second);
    }
    SPW_EXPECT_OK(regions().end("a"));
  }
  ~RegionProgram() override {
    for (const auto& [block, content] : blocks_) SPW_EXPECT_OK(Arena::free(block));
    SPW_EXPECT_OK(regions().release("a"));
    SPW_EXPECT_OK(arena->trim());
  }

  void run() override {
    const auto intact = [&] { EXPECT_TRUE(all_intact()); };
    for (const SpillTo to : {SpillTo::kHost, SpillTo::kDisk}) {
      must([&] { return regions().evict("a", to); }, intact);
      if (to == SpillTo::kHost) must([&] { return regions().prefetch("a"); });
      must([&] { return regions().restore("a"); });
    }
  }
  void check() override {
    if (is_over()) {
      // All of it is still somewhere.
      const RegionUsage usage = regions().report("a").value().usage;
      EXPECT_EQ(usage.lost_bytes + usage.discarded_bytes, 0u);
      EXPECT_TRUE(usage.host_bytes + usage.disk_bytes > 0 || all_intact());
    } else {
      EXPECT_TRUE(all_intact());
    }
  }

 private:
  Regions& regions() { return tiers_->regions(); }
  bool all_intact() const {
    return std::all_of(blocks_.begin(), blocks_.end(),
                       [&](const auto& each) { return holds(va_of(each.first), each.second); });
  }
  std::vector<std::pair<void*, std::vector<char>>> blocks_;
};

class StashProgram : public SpillingProgram {
 public:
  StashProgram() : stream_(device.stream()) {
    source_ = must_allocate(*arena, kBytes, stream_);
    target_ = must_allocate(*arena, kBytes, stream_);
    write(va_of(source_), content_);
  }
  ~StashProgram() override {
    for (void* block : {source_, target_}) SPW_EXPECT_OK(Arena::free(block));
    SPW_EXPECT_OK(arena->trim());
  }

  void run() override {
    for (const Stashes::To to : {Stashes::To::kHost, Stashes::To::kDisk}) {
      Stashes::Stash* stash = nullptr;
      must([&]() -> Status {
        Result<Stashes::Stash*> made = stashes().put(va_of(source_), kBytes, stream_, to);
        if (made.ok()) stash = made.value();
        return made.take_status();
      });
      if (stash == nullptr) return;
      if (to == Stashes::To::kDisk) wait_until_written();
      must([&]() -> Status {
        Status status = stashes().begin_get(*stash, va_of(target_), stream_);
        return status.ok() ? stashes().finish_get(*stash, stream_, nullptr) : std::move(status);
      });
      if (!is_over()) {
        device.clear_faults();  // of the check's own calls
        EXPECT_EQ(device.driver->cuStreamSynchronize(stream_), CUDA_SUCCESS);
        EXPECT_TRUE(holds(va_of(target_), content_));
      }
      stashes().free(stash);
    }
  }
  void check() override { EXPECT_TRUE(holds(va_of(source_), content_)); }

 private:
  static constexpr size_t kBytes = 5 * kMiB;

  Stashes& stashes() { return tiers_->stashes(); }
  // Or found that it cannot be: then it is in host memory.
  void wait_until_written() {
    for (int i = 0; i < 200 && stashes().counters().disk_bytes == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  CUstream stream_;
  void* source_ = nullptr;
  void* target_ = nullptr;
  const std::vector<char> content_ = TestRegion::pattern(kBytes, 7);
};

// `mapped`: by the driver's own host memory, else by mapped pinned memory.
class PlacementProgram : public Program {
 public:
  explicit PlacementProgram(bool mapped)
      : Program(std::string("capacity:4MiB,completion:late,host_vmm:") + (mapped ? "on" : "off")),
        overflow_(HostOverflow::create(*device.driver, *arena, pinned, {kMost, kMiB})),
        stream_(device.stream()) {
    arena->last_rungs().set_placement(overflow_->placement());
  }
  ~PlacementProgram() override { SPW_EXPECT_OK(arena->trim()); }

  void run() override {
    // The third has room only when the work of the first is done.
    for (int i = 0; i < 3 && !is_over(); ++i) {
      void* block = nullptr;
      must([&] { return arena->allocate(kBytes, stream_, &block); });
      if (block == nullptr) return;
      device.touch(stream_, block, kBytes);
      SPW_EXPECT_OK(Arena::free(block));
    }
  }
  void check() override {
    EXPECT_EQ(device.driver->cuCtxSynchronize(), CUDA_SUCCESS);
    // Unless the driver could not say when it was, all of it is given back by now: whole, it serves again.
    void* block = nullptr;
    SPW_EXPECT_OK(arena->allocate(kBytes, stream_, &block));
    write(va_of(block), content_);
    EXPECT_TRUE(holds(va_of(block), content_));
    SPW_EXPECT_OK(Arena::free(block));
  }

 private:
  static constexpr size_t kBytes = 6 * kMiB;
  static constexpr size_t kMost = 14 * kMiB;

  std::shared_ptr<HostOverflow> overflow_;
  CUstream stream_;
  const std::vector<char> content_ = TestRegion::pattern(kBytes, 7);
};

struct Script {
  const char* name;
  std::function<std::unique_ptr<Program>()> make;
};

const Script kScripts[] = {
    {"regions", [] { return std::make_unique<RegionProgram>(); }},
    {"stashes", [] { return std::make_unique<StashProgram>(); }},
    {"placement", [] { return std::make_unique<PlacementProgram>(true); }},
    {"mapped_placement", [] { return std::make_unique<PlacementProgram>(false); }},
};

// Counts how often a run calls what.
std::vector<std::pair<std::string, uint64_t>> calls_of(const Script& script) {
  const std::unique_ptr<Program> program = script.make();
  Device& device = program->device;
  const auto entry_point =
      reinterpret_cast<decltype(&spwSimEntryPoint)>(device.driver->find("spwSimEntryPoint"));
  std::vector<std::pair<std::string, uint64_t>> calls;
  for (size_t i = 0; entry_point(i) != nullptr; ++i) {
    calls.emplace_back(entry_point(i), device.calls(entry_point(i)));
  }
  program->run();
  for (auto& [name, count] : calls) count = device.calls(name.c_str()) - count;
  EXPECT_FALSE(program->has_failed);
  program->check();
  return calls;
}

class DriverFaults : public testing::TestWithParam<std::pair<Script, CUresult>> {};

TEST_P(DriverFaults, NothingIsLostWhereverTheDriverFails) {
  const auto& [script, result] = GetParam();
  int functions = 0;
  int faults = 0;
  int told = 0;
  for (const auto& [name, count] : calls_of(script)) {
    functions += count > 0 ? 1 : 0;
    for (uint64_t nth = 1; nth <= count; nth += nth < stride(3, 3, 2) ? 1 : stride(4, 12, 48)) {
      SCOPED_TRACE(name + " " + std::to_string(nth) + " of " + std::to_string(count));
      const std::unique_ptr<Program> program = script.make();
      program->lasts = result == CUDA_ERROR_ILLEGAL_ADDRESS;
      program->device.inject_fault(name.c_str(), nth, result);
      program->run();
      program->device.clear_faults();
      program->check();
      SPW_EXPECT_OK(program->arena->validate());
      EXPECT_EQ(program->device.reports(), "");
      ++faults;
      told += program->has_failed ? 1 : 0;
      ASSERT_FALSE(HasFailure());
    }
  }
  RecordProperty("functions", functions);
  RecordProperty("faults", faults);
  EXPECT_GE(functions, 5);
  EXPECT_GE(told, 2);
}

std::vector<std::pair<Script, CUresult>> all() {
  std::vector<std::pair<Script, CUresult>> out;
  for (const Script& script : kScripts) {
    for (const CUresult result : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_ILLEGAL_ADDRESS}) {
      out.emplace_back(script, result);
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Scripts, DriverFaults, testing::ValuesIn(all()), [](const auto& info) {
  const char* const name = info.param.second == CUDA_ERROR_UNKNOWN         ? "unknown"
                           : info.param.second == CUDA_ERROR_OUT_OF_MEMORY ? "no_memory"
                                                                           : "lasting";
  return std::string(info.param.first.name) + "_" + name;
});

}  // namespace
}  // namespace spillway::test
