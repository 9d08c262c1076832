// How large the tensors of a call are.
#pragma once

#include <algorithm>
#include <vector>

#include "../_operands/tensors.h"
#include "operators.h"

namespace spillway::values {

struct Bytes {
  uint64_t all = 0;
  uint64_t largest = 0;

  void add(const IValue& value) {
    operands::each_tensor(value, [this](const at::Tensor& tensor) {
      if (operands::base_of(tensor) == 0) return;
      all += tensor.nbytes();
      largest = std::max<uint64_t>(largest, tensor.nbytes());
    });
  }
};

inline Bytes bytes_of(const std::vector<IValue>& values) {
  Bytes bytes;
  for (const IValue& value : values) bytes.add(value);
  return bytes;
}

}  // namespace spillway::values
