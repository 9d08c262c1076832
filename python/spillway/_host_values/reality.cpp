#include "reality.h"

#include "../_operands/tensors.h"
#include "footprint.h"

namespace spillway::values {
namespace {

// A tensor in more runs is judged by all the bytes between its first and its last.
constexpr int64_t kMostRuns = 1 << 16;
constexpr size_t kSweepAt = 1024;

bool has_few_runs(const at::Tensor& tensor) {
  return is_dense(tensor) || tensor.numel() <= kMostRuns;
}

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

}  // namespace

Level Reality::level_of(const at::Tensor& tensor) const {
  if (operands::base_of(tensor) == 0) return Level::kReal;
  if (!tensor.is_cuda()) return !doubts_host() || is_real_on_host(tensor) ? Level::kReal : Level::kComputed;
  if (covers(real_, tensor)) return Level::kReal;
  return covers(computed_, tensor) ? Level::kComputed : Level::kUnknown;
}

bool Reality::covers(const Ranges& ranges, const at::Tensor& tensor) const {
  const std::lock_guard lock(mutex_);
  // What is between the elements may be real too, and mostly is.
  if (ranges.covers(begin_of(tensor), end_of(tensor))) return true;
  if (is_dense(tensor) || !has_few_runs(tensor)) return false;
  const Runs runs = runs_of(tensor);
  return std::all_of(runs.begin(), runs.end(),
                     [&](const SpwSimRange& run) { return ranges.covers(run.ptr, run.ptr + run.bytes); });
}

bool Reality::is_all_unknown(const at::Tensor& tensor) const {
  const uint64_t begin = begin_of(tensor);
  const uint64_t end = end_of(tensor);
  const std::lock_guard lock(mutex_);
  return !computed_.overlaps(begin, end);
}

void Reality::set(const at::Tensor& tensor, Level level) {
  if (operands::base_of(tensor) == 0) return;
  if (!tensor.is_cuda()) return set_on_host(tensor, level == Level::kReal);
  if (level == Level::kUnknown && is_all_unknown(tensor)) return;
  Runs runs;
  if (has_few_runs(tensor)) {
    runs = runs_of(tensor);
  } else if (level != Level::kReal) {  // more is lost than need be, and none is believed that is not
    runs = {{begin_of(tensor), end_of(tensor) - begin_of(tensor), 0, 0}};
    level = Level::kUnknown;
  }
  const auto change = [](Ranges& ranges, const SpwSimRange& run, bool is_in) {
    is_in ? ranges.add(run.ptr, run.ptr + run.bytes) : ranges.remove(run.ptr, run.ptr + run.bytes);
  };
  const std::lock_guard lock(mutex_);
  for (const SpwSimRange& run : runs) {
    change(real_, run, level == Level::kReal);
    change(computed_, run, level != Level::kUnknown);
  }
}

bool Reality::is_real(uint64_t begin, uint64_t end) const {
  const std::lock_guard lock(mutex_);
  return real_.covers(begin, end);
}

void Reality::set(uint64_t begin, uint64_t end, Level level) {
  const std::lock_guard lock(mutex_);
  level == Level::kReal ? real_.add(begin, end) : real_.remove(begin, end);
  level != Level::kUnknown ? computed_.add(begin, end) : computed_.remove(begin, end);
}

bool Reality::is_real_on_host(const at::Tensor& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto found = unreal_.find(storage_of(tensor));
  return found == unreal_.end() || found->second.expired();
}

void Reality::set_on_host(const at::Tensor& tensor, bool real) {
  if (real && !doubts_host()) return;
  c10::StorageImpl* const storage = storage_of(tensor);
  const std::lock_guard lock(mutex_);
  if (real) {
    unreal_.erase(storage);
  } else {
    if (unreal_.size() % kSweepAt == kSweepAt - 1) {
      std::erase_if(unreal_, [](const auto& entry) { return entry.second.expired(); });
    }
    unreal_.insert_or_assign(storage, tensor.storage().getWeakStorageImpl());
  }
  doubted_.store(unreal_.size(), std::memory_order_relaxed);
}

}  // namespace spillway::values
