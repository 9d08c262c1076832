#include "random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <cstring>

namespace spillway::values {
namespace {

constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;

at::Generator used_by(const Operator& op, Arguments arguments, c10::Device device) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.arguments[i].is_generator && arguments[i].isGenerator()) return arguments[i].toGenerator();
  }
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

uint64_t seed_of(const Operator& op, Arguments arguments, c10::Device device) {
  at::Generator generator = used_by(op, arguments, device);
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  uint64_t seed = 0;
  const auto* bytes = static_cast<const char*>(state.const_data_ptr());
  for (size_t at = 0; at + sizeof seed <= state.nbytes() && at < 64; at += sizeof seed) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, sizeof word);
    seed = (seed ^ word) * kMultiplier + 1;
    seed ^= seed >> 29;
  }
  return seed;
}

at::Generator generator_of(uint64_t seed) {
  return at::detail::createCPUGenerator(seed);
}

DefaultGeneratorLent::DefaultGeneratorLent(uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  state_ = generator.get_state();
  generator.set_current_seed(seed);
}

DefaultGeneratorLent::~DefaultGeneratorLent() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state_);
}

}  // namespace spillway::values
