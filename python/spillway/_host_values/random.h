// Random numbers on the host in place of those that the device would draw: they follow from the state of the
// device's generator, so that the same state (of a region that is computed again, say) draws the same ones.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

#include "operators.h"

namespace spillway::values {

// Returns that of the generator that the operator is about to use on the device, before it uses it.
uint64_t seed_of(const Operator& op, Arguments arguments, c10::Device device);

at::Generator generator_of(uint64_t seed);

// Lends the host's own generator another state: for operators that ask no other.
class DefaultGeneratorLent {
 public:
  explicit DefaultGeneratorLent(uint64_t seed);
  ~DefaultGeneratorLent();
  DefaultGeneratorLent(const DefaultGeneratorLent&) = delete;
  DefaultGeneratorLent& operator=(const DefaultGeneratorLent&) = delete;

 private:
  at::Tensor state_;
};

}  // namespace spillway::values
