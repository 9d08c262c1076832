#include "bench/unrepeated/programs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <new>
#include <stdexcept>

namespace spillway::bench {
namespace {

constexpr uint64_t kKiB = 1 << 10;
constexpr uint64_t kMiB = 1 << 20;

class Serving : public Program {
 public:
  Serving(uint64_t seed, uint32_t scale) : Program(seed), live_(96 / scale) {}

  void step(Server& server) override {
    Request& request = live_[index(live_.size())];
    for (Block& block : request) free(server, block);
    for (size_t i = 0; i < request.size(); ++i) {
      Block temporary;
      if (i > 0) temporary = allocate(server, between(4 * kKiB, 128 * kMiB));
      request[i] = allocate(server, between(4 * kKiB, 16 * kMiB));
      free(server, temporary);
    }
  }
  void end(Server& server) override {
    for (Request& request : live_)
      for (Block& block : request) free(server, block);
  }

 private:
  using Request = std::array<Block, 6>;
  std::vector<Request> live_;
};

class Replace : public Program {
 public:
  Replace(uint64_t seed, uint32_t scale) : Program(seed), live_(512 / scale) {}

  void step(Server& server) override {
    Block& block = live_[index(live_.size())];
    free(server, block);
    block = allocate(server, next_bytes());
  }
  void end(Server& server) override {
    for (Block& block : live_) free(server, block);
  }

 protected:
  virtual uint64_t next_bytes() { return between(512, 64 * kMiB); }

 private:
  std::vector<Block> live_;
};

class Drift : public Replace {
 public:
  using Replace::Replace;

 protected:
  uint64_t next_bytes() override {
    constexpr double kStepsPerRound = 50'000;
    const double phase = 0.5 - 0.5 * std::cos(2 * M_PI * static_cast<double>(step_++) / kStepsPerRound);
    const auto mean = static_cast<uint64_t>(static_cast<double>(64 * kKiB) * std::pow(1024.0, phase));
    return between(mean / 2, mean * 2);
  }

 private:
  uint64_t step_ = 0;
};

class Buckets : public Replace {
 public:
  Buckets(uint64_t seed, uint32_t scale) : Replace(seed, scale) {
    for (uint64_t& bytes : bytes_) bytes = between(512, 64 * kMiB);
  }

 protected:
  uint64_t next_bytes() override { return bytes_[index(bytes_.size())]; }

 private:
  std::array<uint64_t, 32> bytes_;
};

// A transformer of 28 layers, 4,096 wide, in 16 bits: each keeps ten activations for the way back.
class VariableLength : public Program {
 public:
  VariableLength(uint64_t seed, uint32_t scale) : Program(seed), scale_(scale) {}

  void step(Server& server) override {
    const uint64_t tokens = between(128, 8192 / scale_);
    const uint64_t hidden_bytes = tokens * 4096 * 2;
    std::vector<std::array<Block, 10>> layers(28);
    for (auto& kept : layers) {
      for (size_t i = 0; i < kept.size(); ++i) {
        Block temporary = allocate(server, i % 3 == 0 ? hidden_bytes * 4 : hidden_bytes);
        kept[i] = allocate(server, i < 2 ? tokens * 4 : i < 8 ? hidden_bytes : hidden_bytes * 11 / 4);
        free(server, temporary);
      }
    }
    Block gradient = allocate(server, hidden_bytes);
    for (size_t layer = layers.size(); layer-- > 0;) {
      for (size_t i = layers[layer].size(); i-- > 0;) {
        Block next = allocate(server, i < 8 ? hidden_bytes : hidden_bytes * 11 / 4);
        free(server, layers[layer][i]);
        free(server, gradient);
        gradient = next;
      }
    }
    free(server, gradient);
  }
  void end(Server& /*server*/) override {}  // each step frees its own

 private:
  const uint32_t scale_;
};

}  // namespace

Program::Block Program::allocate(Server& server, uint64_t bytes) {
  ++calls_;
  void* at = server.allocate(bytes);
  if (at == nullptr) throw std::bad_alloc();
  return {at, bytes};
}

void Program::free(Server& server, Block& block) {
  if (block.at == nullptr) return;
  ++calls_;
  server.free(block.at, block.bytes);
  block = {};
}

uint64_t Program::between(uint64_t fewest_bytes, uint64_t most_bytes) {
  const double lowest = std::log(static_cast<double>(fewest_bytes));
  const double highest = std::log(static_cast<double>(most_bytes));
  return static_cast<uint64_t>(std::exp(std::uniform_real_distribution<double>(lowest, highest)(random_)));
}

const std::vector<std::string>& program_names() {
  static const std::vector<std::string> kNames = {"serving", "replace", "varlen", "drift", "buckets"};
  return kNames;
}

std::unique_ptr<Program> make_program(const std::string& name, uint64_t seed, uint32_t scale) {
  if (name == "serving") return std::make_unique<Serving>(seed, scale);
  if (name == "replace") return std::make_unique<Replace>(seed, scale);
  if (name == "varlen") return std::make_unique<VariableLength>(seed, scale);
  if (name == "drift") return std::make_unique<Drift>(seed, scale);
  if (name == "buckets") return std::make_unique<Buckets>(seed, scale);
  throw std::invalid_argument("no program '" + name + "'");
}

}  // namespace spillway::bench
