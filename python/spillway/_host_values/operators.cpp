#include "operators.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace spillway::values {
namespace {

template <size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

using Names = std::string_view;
constexpr std::array kMaking = std::to_array<Names>({"aten::empty", "aten::empty_strided", "aten::empty_like",
                                                     "aten::new_empty", "aten::_empty_affine_quantized"});
constexpr std::array kWithoutValues =
    std::to_array<Names>({"aten::resize_", "aten::set_", "aten::_resize_output_", "aten::record_stream",
                          "aten::resize", "aten::_pin_memory", "aten::is_pinned", "aten::resize_as_"});
// They write all of what they are given and read none of it.
constexpr std::array kOverwriting = std::to_array<Names>(
    {"aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_", "aten::_foreach_zero_"});
constexpr std::array kPicking =
    std::to_array<Names>({"aten::topk", "aten::sort", "aten::max", "aten::min", "aten::kthvalue",
                          "aten::median", "aten::nanmedian", "aten::mode", "aten::cummax", "aten::cummin"});

// The argument of what is written to those elements of the first one that others name.
int partial_values_of(const c10::OperatorName& name) {
  if (name.name == "aten::_index_put_impl_") return 2;
  if (name.name == "aten::index_copy_" || name.name == "aten::index_fill_") return 3;
  if (name.name == "aten::scatter_")
    return name.overload_name == "src" || name.overload_name == "value" ? 3 : -1;
  return name.name == "aten::masked_fill_" ? 2 : -1;
}

Counts counts_of(Names name) {
  if (name == "aten::nonzero") return Counts::kRows;
  if (name == "aten::_unique2" || name == "aten::unique_consecutive" || name == "aten::unique_dim" ||
      name == "aten::unique_dim_consecutive" || name == "aten::_unique") {
    return Counts::kFirstRows;
  }
  return name == "aten::equal" ? Counts::kEqual : Counts::kNothing;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool has_tensors(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::TensorType::get()) ||
         argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
}

void describe_arguments(Operator& op, const c10::FunctionSchema& schema) {
  const bool overwrites = is_one_of(schema.name(), kOverwriting);
  const auto is_generator = [](const c10::Argument& argument) {
    return argument.type()->str().starts_with("Generator");
  };
  const auto& all = schema.arguments();
  op.random = op.recipe == nullptr && (op.handle.hasTag(at::Tag::nondeterministic_seeded) ||
                                       std::any_of(all.begin(), all.end(), is_generator));
  for (const c10::Argument& each : all) {
    Argument argument;
    argument.may_be_tensors = each.type()->str().find("Tensor") != std::string::npos;
    argument.written = is_written(each);
    argument.is_output = argument.written && each.kwarg_only();
    argument.is_generator = is_generator(each);
    // What is drawn in place replaces what was there.
    argument.read = !argument.is_output && !(argument.written && (overwrites || op.random));
    op.writes_any |= argument.written;
    op.arguments.push_back(argument);
  }
  if (schema.name() == "aten::native_batch_norm") {  // its schema does not say so
    op.arguments[3].written = op.arguments[4].written = op.writes_any = true;
  }
  if (op.recipe != nullptr) {
    for (const size_t unread : op.recipe->unread) op.arguments[unread].read = false;
  }
}

// False where one is a view.
bool describe_results(Operator& op, const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    int of = -1;
    if (result.alias_info() != nullptr) {
      if (!is_written(result)) return false;
      const auto& sets = result.alias_info()->beforeSets();
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* alias = schema.arguments()[i].alias_info();
        if (alias != nullptr && alias->beforeSets() == sets) of = static_cast<int>(i);
      }
    }
    op.result_of.push_back(of);
  }
  return true;
}

Kind kind_of(const Operator& op, const c10::FunctionSchema& schema, bool has_views) {
  const Names name = schema.name();
  if (name.starts_with("c10d") || name.starts_with("_c10d") || name.starts_with("symm_mem"))
    return Kind::kIgnored;  // the simulated NCCL tells what arrived
  if (!name.starts_with("aten::")) return op.writes_any ? Kind::kForeign : Kind::kIgnored;
  if (is_one_of(name, kMaking)) return Kind::kMakes;
  if (is_one_of(name, kWithoutValues) || has_views) return Kind::kIgnored;
  if (name == "aten::copy_") return Kind::kCopies;
  if (!op.handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) return Kind::kIgnored;
  if (name == "aten::_local_scalar_dense") return Kind::kReads;
  const bool has_effect = op.writes_any || op.counts != Counts::kNothing ||
                          std::any_of(schema.returns().begin(), schema.returns().end(), has_tensors);
  return has_effect ? Kind::kComputes : Kind::kIgnored;
}

std::unique_ptr<Operator> describe(const c10::OperatorName& name) {
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle.has_value()) return nullptr;
  auto op = std::make_unique<Operator>(*handle);
  const c10::FunctionSchema& schema = handle->schema();
  op->recipe = recipe_of(name);
  op->counts = counts_of(schema.name());
  if (schema.name() == "aten::_amp_foreach_non_finite_check_and_unscale_") op->assumed = 1;
  op->partial_values = partial_values_of(name);
  op->has_host_kernel =
      op->recipe != nullptr || handle->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  op->picks = is_one_of(schema.name(), kPicking);
  op->autocasts = handle->hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA);
  describe_arguments(*op, schema);
  const bool has_views = !describe_results(*op, schema);
  op->kind = kind_of(*op, schema, has_views);
  op->only_makes_results = !op->writes_any && (op->kind == Kind::kComputes || op->kind == Kind::kMakes);
  return op;
}

// Descriptions live for ever.
const Operator* find_or_describe(const c10::OperatorName& name) {
  static std::mutex mutex;
  static auto* const kKnown = new std::unordered_map<c10::OperatorName, std::unique_ptr<Operator>>;
  const std::lock_guard lock(mutex);
  auto found = kKnown->find(name);
  if (found == kKnown->end()) found = kKnown->emplace(name, describe(name)).first;
  return found->second.get();
}

}  // namespace

namespace {

// A schema's name has an address of its own, which serves where the name would take longer.
struct Known {
  const char* name = nullptr;
  const Operator* op = nullptr;
};
constexpr size_t kKnownBits = 11;
constinit thread_local std::array<Known, size_t{1} << kKnownBits> known{};

}  // namespace

const Operator* operator_of(const at::RecordFunction& function) {
  const char* const name = function.name();
  const uint64_t hash = reinterpret_cast<uint64_t>(name) * 0x9e3779b97f4a7c15;
  Known& slot = known[hash >> (64 - kKnownBits)];
  if (slot.name == name) return slot.op;
  const auto operator_name = function.operator_name();
  if (!operator_name.has_value()) return nullptr;
  const Operator* const op = find_or_describe(*operator_name);
  if (op != nullptr) slot = {name, op};
  return op;
}

}  // namespace spillway::values
