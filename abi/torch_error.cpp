#include "abi/torch_error.h"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string_view>
#include <typeinfo>

namespace spillway {
namespace {

// c10::Error(std::string text, std::shared_ptr<...> backtrace, const void* caller), called as a compiler
// calls it: what is passed by value and has a destructor goes by address.
using Construct = void (*)(void* self, std::string* text, std::shared_ptr<const void>* backtrace,
                           const void* caller);

// The Itanium C++ ABI, 2.5.2: where the vtable of a class without virtual bases begins.
struct Vtable {
  std::ptrdiff_t offset_to_top;
  const std::type_info* type;
  const void* functions;  // the first of them; objects point here
};

constexpr std::string_view kErrorName = "N3c105ErrorE";
constexpr std::string_view kOutOfMemoryName = "N3c1016OutOfMemoryErrorE";
// What a c10::Error takes is not known here; it was 128.
constexpr size_t kMostBytes = 1024;

std::atomic<const Vtable*> known_vtable{nullptr};
std::atomic<Construct> known_construct{nullptr};

void call(Construct construct, void* self, std::string text) {
  std::shared_ptr<const void> backtrace;
  construct(self, &text, &backtrace, nullptr);
}

const std::type_info* only_base(const std::type_info* type) {
  const auto* with_one_base = dynamic_cast<const abi::__si_class_type_info*>(type);
  return with_one_base == nullptr ? nullptr : with_one_base->__base_type;
}

// Tells whether objects of this vtable are a c10::Error, which is a std::exception, and both at their
// beginning.
bool is_out_of_memory_error(const Vtable& vtable) {
  if (vtable.offset_to_top != 0 || vtable.type == nullptr || vtable.type->name() != kOutOfMemoryName)
    return false;
  const std::type_info* const base = only_base(vtable.type);
  if (base == nullptr || base->name() != kErrorName) return false;
  const std::type_info* const root = only_base(base);
  return root != nullptr && *root == typeid(std::exception);
}

// Tells whether this makes a c10::Error with the text in it, of no more bytes than are there for one.
bool makes_error(Construct construct) {
  constexpr std::byte kUntouched{0xa5};
  constexpr std::string_view kText = "a text that is too long to lie within a string";
  alignas(std::max_align_t) std::array<std::byte, 2 * kMostBytes> place{};
  place.fill(kUntouched);
  const auto is_untouched = [](std::byte byte) { return byte == kUntouched; };
  call(construct, place.data(), std::string(kText));
  if (std::all_of(place.begin(), place.begin() + sizeof(void*), is_untouched)) return false;
  if (!std::all_of(place.begin() + kMostBytes, place.end(), is_untouched)) return false;
  auto* const error = std::launder(reinterpret_cast<std::exception*>(place.data()));
  if (typeid(*error).name() != kErrorName) return false;
  const bool has_text = std::string_view(error->what()).substr(0, kText.size()) == kText;
  error->~exception();
  return has_text;
}

// Throws a class that derives from `construct`'s and adds nothing to it, made as a compiler makes it: the
// base, and then the pointer to the class's own functions.
[[noreturn]] void throw_as(const Vtable& vtable, Construct construct, const std::string& text) {
  void* error = abi::__cxa_allocate_exception(kMostBytes);
  try {
    call(construct, error, text);
  } catch (...) {
    abi::__cxa_free_exception(error);
    throw;
  }
  const void* const functions = &vtable.functions;
  std::memcpy(error, &functions, sizeof functions);
  abi::__cxa_throw(error, const_cast<std::type_info*>(vtable.type),
                   [](void* self) { static_cast<std::exception*>(self)->~exception(); });
}

}  // namespace

void throw_torch_error_as(const void* vtable, void* construct) noexcept {
  known_vtable.store(nullptr);
  if (vtable == nullptr || construct == nullptr) return;
  const auto* const parts = static_cast<const Vtable*>(vtable);
  const auto function = reinterpret_cast<Construct>(construct);
  try {
    if (!is_out_of_memory_error(*parts) || !makes_error(function)) return;
  } catch (...) {
    return;
  }
  known_construct.store(function);
  known_vtable.store(parts);
}

void throw_out_of_memory(const std::string& text) {
  const Vtable* const vtable = known_vtable.load();
  if (vtable == nullptr) throw std::runtime_error(text);
  throw_as(*vtable, known_construct.load(), text);
}

}  // namespace spillway
