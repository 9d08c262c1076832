// Knows which values are real: what a GPU would hold. On devices it is known byte by byte and nothing is real
// until it was written so, in whatever storage the bytes are; on the host all is real but storages that other
// values were copied to.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "ranges.h"

namespace spillway::values {

enum class Level : uint8_t {
  kUnknown,   // what lay in memory
  kComputed,  // from something unknown: an index is one
  kReal,
};

class Reality {
 public:
  // This is that of the least of its elements.
  Level level_of(const at::Tensor& tensor) const;
  bool is_real(const at::Tensor& tensor) const { return level_of(tensor) == Level::kReal; }
  // Tells whether nothing is known between the first and the last of its elements.
  bool is_all_unknown(const at::Tensor& tensor) const;
  void set(const at::Tensor& tensor, Level level);
  // The same of bytes of a device.
  bool is_real(uint64_t begin, uint64_t end) const;
  void set(uint64_t begin, uint64_t end, Level level);
  // Tells whether anything on the host is not.
  bool doubts_host() const { return doubted_.load(std::memory_order_relaxed) != 0; }

 private:
  void set_on_host(const at::Tensor& tensor, bool real);
  bool covers(const Ranges& ranges, const at::Tensor& tensor) const;
  bool is_real_on_host(const at::Tensor& tensor) const;

  mutable std::mutex mutex_;
  Ranges real_;
  Ranges computed_;  // what is real among them
  // A storage that is gone is no entry: another one may have its address.
  std::unordered_map<c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> unreal_;
  std::atomic<size_t> doubted_{0};
};

}  // namespace spillway::values
