// bench_disk_tier: what the disk tier adds to the disk's engine. Pieces are written and read by the engine
// alone, and through the tier, which compares checksums, as many at a time in as much memory; run after run
// in turn, medians.
#include <fmt/format.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "offload/spill/disk_tier.h"
#include "stats/trace_record.h"

namespace spillway::bench {
namespace {

constexpr double kGiB = 1 << 30;

struct Options {
  std::string directory = std::filesystem::temp_directory_path();
  uint64_t mib = 2048;
  int rounds = 9;
  uint64_t block_mib = 2;
  uint32_t depth = 8;
  std::string engine = "io_uring";

  uint64_t pieces() const { return std::max<uint64_t>(1, (mib << 20) / kPieceBytes); }
  size_t in_flight() const { return std::max<size_t>(1, (block_mib << 20) * depth / kPieceBytes); }
};

[[noreturn]] void give_up(const std::string& text) {
  fmt::print(stderr, "bench_disk_tier: {}\n", text);
  std::exit(1);
}

double cpu_seconds() {
  return static_cast<double>(clock_ns(CLOCK_PROCESS_CPUTIME_ID)) / 1e9;
}

struct Freed {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// A piece's memory for each operation in flight, with numbers that no file system packs.
std::unique_ptr<std::byte, Freed> make_memory(size_t bytes) {
  std::unique_ptr<std::byte, Freed> memory(static_cast<std::byte*>(std::aligned_alloc(kPieceBytes, bytes)));
  if (memory == nullptr) give_up("the host has no memory for the pieces");
  (void)madvise(memory.get(), bytes, MADV_HUGEPAGE);
  uint64_t value = 1;
  for (size_t at = 0; at < bytes; at += sizeof value) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(memory.get() + at, &value, sizeof value);
  }
  return memory;
}

using Done = std::function<void(bool is_ok)>;
using Operation = std::function<void(uint64_t piece, std::span<std::byte> memory, Done done)>;

// So many operations at a time, each in memory of its own; one that ends starts the next.
class InFlight {
 public:
  InFlight(uint64_t count, Operation operation) : count_(count), operation_(std::move(operation)) {}

  void run(std::byte* memory, size_t most) {
    running_ = most;
    for (size_t i = 0; i < most; ++i) start_next({memory + i * kPieceBytes, kPieceBytes});
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return running_ == 0; });
    if (!is_ok_) give_up("an operation failed");
  }

 private:
  void start_next(std::span<std::byte> memory) {
    uint64_t piece = 0;
    {
      const std::lock_guard lock(mutex_);
      if (!is_ok_ || next_ == count_) {
        if (--running_ == 0) ended_.notify_all();
        return;
      }
      piece = next_++;
    }
    operation_(piece, memory, [this, memory](bool is_ok) {
      if (!is_ok) {
        const std::lock_guard lock(mutex_);
        is_ok_ = false;
      }
      start_next(memory);
    });
  }

  const uint64_t count_;
  const Operation operation_;
  std::mutex mutex_;
  std::condition_variable ended_;
  uint64_t next_ = 0;
  size_t running_ = 0;
  bool is_ok_ = true;
};

class Contender {
 public:
  virtual ~Contender() = default;
  virtual const char* name() const = 0;
  virtual void use_memory(std::span<std::byte> memory) = 0;
  virtual Operation operation(IoKind kind) = 0;
  virtual std::string engine() const = 0;  // what served
};

DiskTierOptions tier_options(const Options& options) {
  DiskTierOptions tier;
  tier.file.directory = options.directory;
  tier.file.allow_ram_backed = true;
  tier.io.block_bytes = options.block_mib << 20;
  tier.io.depth = options.depth;
  tier.io.use_uring = options.engine == "io_uring";
  return tier;
}

class EngineAlone final : public Contender {
 public:
  explicit EngineAlone(const Options& options) : engine_(tier_options(options).io) {
    Result<std::unique_ptr<ExtentFile>> file = ExtentFile::open(tier_options(options).file);
    if (!file.ok()) give_up(file.status().text());
    file_ = std::move(file.value());
    Result<std::vector<Extent>> extents = file_->reserve(options.pieces() * kPieceBytes);
    if (!extents.ok()) give_up(extents.status().text());
    for (const Extent& extent : extents.value()) {
      for (uint64_t at = 0; at < extent.bytes; at += kPieceBytes) places_.push_back(extent.offset + at);
    }
    if (Status status = engine_.use_file(file_->file()); !status.ok()) give_up(status.text());
  }
  const char* name() const override { return "engine alone"; }
  void use_memory(std::span<std::byte> memory) override { (void)engine_.use_memory(memory); }
  std::string engine() const override { return engine_.description(); }
  Operation operation(IoKind kind) override {
    return [this, kind](uint64_t piece, std::span<std::byte> memory, const Done& done) {
      const IoRequest request{kind, IoPriority::kDemand, &file_->file(), memory, places_[piece]};
      if (!engine_.submit(request, [done](int error) { done(error == 0); }).ok()) done(false);
    };
  }

 private:
  std::unique_ptr<ExtentFile> file_;
  std::vector<uint64_t> places_;
  IoEngine engine_;  // ends first: its requests use the file
};

class Tier final : public Contender {
 public:
  explicit Tier(const Options& options) : tier_(tier_options(options)) {
    if (Status status = tier_.reserve(options.pieces() * kPieceBytes, &pieces_); !status.ok())
      give_up(status.text());
  }
  ~Tier() override { tier_.release(pieces_); }
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;
  const char* name() const override { return "tier, checksums"; }
  void use_memory(std::span<std::byte> memory) override { tier_.use_memory(memory); }
  std::string engine() const override { return tier_.engine(); }
  Operation operation(IoKind kind) override {
    return [this, kind](uint64_t piece, std::span<std::byte> memory, const Done& done) {
      const auto ended = [done](const Status& status) { done(status.ok()); };
      if (kind == IoKind::kWrite) {
        tier_.write(memory, pieces_[piece], IoPriority::kDemand, nullptr, ended);
      } else {
        tier_.read(memory, pieces_[piece], IoPriority::kDemand, ended);
      }
    };
  }

 private:
  DiskTier tier_;
  std::vector<DiskPiece> pieces_;
};

struct Samples {
  std::vector<double> bytes_per_s;
  std::vector<double> cpu_s_per_gib;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(Contender& contender, IoKind kind, const Options& options, std::byte* memory, Samples& samples) {
  const auto bytes = static_cast<double>(options.pieces() * kPieceBytes);
  InFlight in_flight(options.pieces(), contender.operation(kind));
  const double cpu = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  in_flight.run(memory, options.in_flight());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  samples.bytes_per_s.push_back(bytes / seconds);
  samples.cpu_s_per_gib.push_back((cpu_seconds() - cpu) / (bytes / kGiB));
}

int run(const Options& options) {
  const size_t memory_bytes = options.in_flight() * kPieceBytes;
  const auto memory = make_memory(memory_bytes);
  std::vector<std::unique_ptr<Contender>> contenders;
  contenders.push_back(std::make_unique<EngineAlone>(options));
  contenders.push_back(std::make_unique<Tier>(options));
  for (const auto& contender : contenders) contender->use_memory({memory.get(), memory_bytes});
  fmt::print("| | | GB/s | of the engine alone | processor s/GiB |\n|---|---|---:|---:|---:|\n");
  for (const auto& [kind, way] : {std::pair(IoKind::kWrite, "write"), std::pair(IoKind::kRead, "read")}) {
    std::vector<Samples> samples(contenders.size());
    for (int round = 0; round < options.rounds; ++round) {
      for (size_t i = 0; i < contenders.size(); ++i) {
        // Each follows each other: the first of a round is the last of the next.
        const size_t turn = (i + static_cast<size_t>(round)) % contenders.size();
        measure(*contenders[turn], kind, options, memory.get(), samples[turn]);
      }
    }
    for (size_t i = 0; i < contenders.size(); ++i) {
      fmt::print("| {} | {} | {:.2f} | {:.3f} | {:.3f} |\n", way, contenders[i]->name(),
                 median(samples[i].bytes_per_s) / 1e9,
                 median(samples[i].bytes_per_s) / median(samples[0].bytes_per_s),
                 median(samples[i].cpu_s_per_gib));
    }
  }
  for (const auto& contender : contenders) fmt::print("{}: {}\n", contender->name(), contender->engine());
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  spillway::bench::Options options;
  CLI::App app{"What the disk tier, with its checksums, adds to the disk's engine.", "bench_disk_tier"};
  app.add_option("--dir", options.directory, "directory on the disk to measure")->capture_default_str();
  app.add_option("--mib", options.mib, "MiB to write and read each time")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--block", options.block_mib, "MiB of one operation")
      ->check(CLI::Range(1, 2))
      ->capture_default_str();
  app.add_option("--depth", options.depth, "operations at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--engine", options.engine)
      ->check(CLI::IsMember({"io_uring", "threads"}))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    spillway::bench::give_up(error.what());
  }
  return spillway::bench::run(options);
}
