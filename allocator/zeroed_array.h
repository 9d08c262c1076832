// An array of zeros that takes host memory only as it is written to, page by page: for tables that may grow
// large and mostly do not. Move-only; not thread-safe.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <type_traits>
#include <utility>

namespace spillway {

template <typename Element>
class ZeroedArray {
  static_assert(std::is_trivially_copyable_v<Element> && std::is_trivially_destructible_v<Element>);

 public:
  ZeroedArray() = default;
  // Makes one of `count` zeros; empty where host memory has run out.
  explicit ZeroedArray(size_t count) noexcept {
    void* memory = mmap(nullptr, count * sizeof(Element), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return;
    elements_ = static_cast<Element*>(memory);
    size_ = count;
  }
  ZeroedArray(ZeroedArray&& other) noexcept { swap(other); }
  ZeroedArray& operator=(ZeroedArray&& other) noexcept {
    ZeroedArray(std::move(other)).swap(*this);
    return *this;
  }
  ~ZeroedArray() {
    if (elements_ != nullptr) munmap(elements_, size_ * sizeof(Element));
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Element& operator[](size_t index) { return elements_[index]; }
  const Element& operator[](size_t index) const { return elements_[index]; }

  void swap(ZeroedArray& other) noexcept {
    std::swap(elements_, other.elements_);
    std::swap(size_, other.size_);
  }

 private:
  Element* elements_ = nullptr;
  size_t size_ = 0;
};

}  // namespace spillway
