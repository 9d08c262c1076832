// Keeps what is to be known of an operator to compute it beside its kernels: looked up once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <atomic>
#include <optional>
#include <vector>

namespace spillway::values {

using c10::IValue;
using Arguments = c10::ArrayRef<const IValue>;

// An implementation for the host of an operator whose own kernels are for CUDA alone, or refuse there what
// they do for CUDA. Takes the operator's arguments, whose tensors are the host's, and answers its results;
// those of which nothing is known may be undefined.
using Recipe = std::vector<IValue> (*)(const std::vector<IValue>& arguments);
// Null where the operator's own kernel does it.
struct RecipeOf {
  Recipe recipe = nullptr;
  std::vector<size_t> unread;  // arguments that it does not need
  int dropout = -1;            // the argument that must be zero for the values to be real
};
const RecipeOf* recipe_of(const c10::OperatorName& name);

enum class Kind : uint8_t {
  kIgnored,   // made of others, or a view
  kMakes,     // new memory, in which nothing is written
  kComputes,  // has a kernel for CUDA
  kCopies,    // copy_, on whichever devices
  kReads,     // brings a number to the host
  kForeign,   // not PyTorch's own: what it writes is not known
  kTalks,     // to other processes: any of its tensors may be written
};

// A kernel counts this on the device, and the host reads it to go on.
enum class Counts : uint8_t { kNothing, kRows, kFirstRows, kEqual };

struct Argument {
  bool may_be_tensors = false;
  bool written = false;
  bool read = true;
  bool is_output = false;  // of an overload for given outputs
  bool is_generator = false;
};

struct Operator {
  explicit Operator(c10::OperatorHandle of) : handle(std::move(of)) {}

  c10::OperatorHandle handle;
  Kind kind = Kind::kIgnored;
  Counts counts = Counts::kNothing;
  bool picks = false;  // its integers matter, though its first result is none
  bool random = false;
  bool autocasts = false;
  bool writes_any = false;
  bool only_makes_results = false;  // and touches none of its arguments
  int assumed = -1;  // the argument that stays as it is where all goes well: whether gradients overflowed
  int partial_values =
      -1;  // the argument that it writes to some elements of the first one, and reads no other
  std::vector<Argument> arguments;
  std::vector<int> result_of;  // by result: the argument that it is; -1: a new one
  const RecipeOf* recipe = nullptr;
  // Says whether its first result was ever of integers though an argument was not; not asked yet: 2.
  mutable std::atomic<uint8_t> makes_integers{2};
  // An operator that never came out right is not tried for ever.
  mutable std::atomic<int> successes{0};
  mutable std::atomic<int> failures{0};

  bool has_host_kernel = false;  // or a recipe

  bool is_worth_trying() const { return has_host_kernel && (failures < kMostFailures || successes > 0); }
  static constexpr int kMostFailures = 16;
};

// The operator that is observed; null where it is none.
const Operator* operator_of(const at::RecordFunction& function);

}  // namespace spillway::values
