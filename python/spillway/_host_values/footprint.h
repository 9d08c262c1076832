// Tells which bytes a tensor's elements are, and their copies on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sim/cuda/sim_control.h"

namespace spillway::values {

using Runs = std::vector<SpwSimRange>;

// The functions of the simulated driver.
struct Driver {
  decltype(&spwSimPeek) peek = nullptr;
  decltype(&spwSimPoke) poke = nullptr;
  decltype(&spwSimAnswer) answer = nullptr;
  decltype(&spwSimCopyNothing) copy_nothing = nullptr;
  decltype(&spwSimIsCapturing) is_capturing = nullptr;
};
extern Driver driver;

// Tells whether the elements are all of a contiguous piece of memory, in whichever order.
bool is_dense(const at::Tensor& tensor);
// The address of the first element, in memory's order as strides are not negative.
uint64_t begin_of(const at::Tensor& tensor);
// The end of the last one.
uint64_t end_of(const at::Tensor& tensor);
// The bytes of the elements in the order of their indices; of a dense tensor one run, in memory's order.
Runs runs_of(const at::Tensor& tensor);

// A tensor on the host of the same bytes as one on a device; undefined where they cannot be read.
at::Tensor mirror_of(const at::Tensor& tensor);
// Brings the host's values to a tensor on a device of the same sizes, whatever its type; false where that
// cannot be.
bool write_back(const at::Tensor& tensor, const at::Tensor& values);

}  // namespace spillway::values
