// PyTorch's own error for want of memory: made from parts that are right, refused where any is not.
#include <cxxabi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>

#include "include/spillway/spillway.h"
#include "include/spillway/torch.h"
#include "tests/support/child.h"

// As PyTorch has them.
namespace c10 {

class Error : public std::exception {
 public:
  explicit Error(std::string text, std::shared_ptr<const void> backtrace = nullptr,
                 const void* caller = nullptr)
      : text_(std::move(text)), backtrace_(std::move(backtrace)), caller_(caller) {}
  ~Error() override { ++destroyed; }
  const char* what() const noexcept override { return text_.c_str(); }
  const void* caller() const { return caller_; }
  static inline int destroyed = 0;

 private:
  std::string text_;
  std::shared_ptr<const void> backtrace_;
  const void* caller_;
};

class OutOfMemoryError : public Error {
  using Error::Error;
};

class IndexError : public Error {
  using Error::Error;
};

}  // namespace c10

namespace spillway::test {
namespace {

using WithoutBase = abi::__class_type_info;
using WithOneBase = abi::__si_class_type_info;
using Construct = void (*)(void* self, std::string* text, std::shared_ptr<const void>* backtrace,
                           const void* caller);

// An offset, the type, and the functions: two destructors and what().
using Vtable = std::array<const void*, 5>;

template <typename Class>
Vtable vtable_of() {
  const Class sample("");
  const void* const* functions = nullptr;
  std::memcpy(&functions, static_cast<const void*>(&sample), sizeof functions);
  Vtable out;
  std::memcpy(out.data(), functions - 2, sizeof out);
  return out;
}

void construct_error(void* self, std::string* text, std::shared_ptr<const void>* backtrace,
                     const void* caller) {
  new (self) c10::Error(std::move(*text), std::move(*backtrace), caller);
}

// Returns what an allocation for which there is no memory throws.
const std::type_info& type_thrown() {
  try {
    spw_torch_alloc(size_t{1} << 50, 0, nullptr);
  } catch (const std::exception& error) {
    SPW_CHECK(std::string(error.what()).find("CUDA out of memory") == 0);
    return typeid(error);
  }
  return typeid(void);
}

void throw_as(const Vtable& vtable, Construct construct = &construct_error) {
  spw_torch_throw_as(vtable.data(), reinterpret_cast<void*>(construct));
}

// Out of memory is as without PyTorch with these parts, and as PyTorch has it with the right ones.
void expect_refused(const Vtable& vtable, Construct construct = &construct_error) {
  static const Vtable kRight = vtable_of<c10::OutOfMemoryError>();
  throw_as(kRight);
  SPW_CHECK(type_thrown() == typeid(c10::OutOfMemoryError));
  throw_as(vtable, construct);
  SPW_CHECK(type_thrown() == typeid(std::runtime_error));
}

TEST(TorchError, IsOfTheTypeAskedFor) {
  in_child({}, [] {
    const auto driver = start_device();
    const Vtable vtable = vtable_of<c10::OutOfMemoryError>();
    throw_as(vtable);
    c10::Error::destroyed = 0;
    std::string text;
    try {
      spw_torch_alloc(size_t{1} << 50, 0, nullptr);
    } catch (const c10::Error& error) {
      text = error.what();
      SPW_CHECK(typeid(error) == typeid(c10::OutOfMemoryError) && error.caller() == nullptr);
    }
    SPW_CHECK(text.find("CUDA out of memory") == 0 && c10::Error::destroyed == 1);
    try {
      spw_torch_alloc(1 << 20, 63, nullptr);
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    SPW_CHECK(text.find("spillway: ") == 0);
  });
}

TEST(TorchError, IsRefusedWithoutItsParts) {
  in_child({}, [] {
    const auto driver = start_device();
    const Vtable vtable = vtable_of<c10::OutOfMemoryError>();
    expect_refused(vtable, nullptr);
    throw_as(vtable);
    spw_torch_throw_as(nullptr, reinterpret_cast<void*>(&construct_error));
    SPW_CHECK(type_thrown() == typeid(std::runtime_error));
  });
}

TEST(TorchError, IsRefusedWhereTheVtableIsOfSomethingElse) {
  in_child({}, [] {
    const auto driver = start_device();
    const Vtable right = vtable_of<c10::OutOfMemoryError>();
    const auto with_type = [&](const std::type_info* type) {
      Vtable forged = right;
      forged[1] = type;
      return forged;
    };
    Vtable below_the_top = right;
    below_the_top[0] = reinterpret_cast<const void*>(intptr_t{-8});
    expect_refused(below_the_top);
    expect_refused(with_type(nullptr));
    expect_refused(vtable_of<c10::IndexError>());
    expect_refused(vtable_of<c10::Error>());

    const char* const name = typeid(c10::OutOfMemoryError).name();
    const auto* const error = static_cast<const WithoutBase*>(&typeid(c10::Error));
    const auto* const other = static_cast<const WithoutBase*>(&typeid(std::runtime_error));
    const WithOneBase same(name, error);
    throw_as(with_type(&same));
    SPW_CHECK(type_thrown() == typeid(c10::OutOfMemoryError));
    const WithoutBase without_base(name);
    expect_refused(with_type(&without_base));
    const WithOneBase with_another_base(name, other);
    expect_refused(with_type(&with_another_base));
    const WithoutBase lone_error(typeid(c10::Error).name());
    const WithOneBase with_lone_error(name, &lone_error);
    expect_refused(with_type(&with_lone_error));
    const WithOneBase error_of_another_base(typeid(c10::Error).name(), other);
    const WithOneBase with_such_an_error(name, &error_of_another_base);
    expect_refused(with_type(&with_such_an_error));
  });
}

// What is refused for its type or its size is not destroyed, since nobody knows what it is. A copy of it
// keeps its memory reachable, so that no checker calls that a leak.
template <typename Object>
void make_and_keep(void* self, const std::string& text) {
  alignas(std::max_align_t) static std::array<std::byte, sizeof(Object)> kept;
  std::memcpy(kept.data(), static_cast<const void*>(new (self) Object(text)), sizeof(Object));
}

TEST(TorchError, IsRefusedWhereTheConstructorMakesSomethingElse) {
  in_child({}, [] {
    const auto driver = start_device();
    const Vtable right = vtable_of<c10::OutOfMemoryError>();
    using Text = std::string*;
    using Backtrace = std::shared_ptr<const void>*;
    expect_refused(right, [](void*, Text, Backtrace, const void*) {});
    expect_refused(right, [](void*, Text, Backtrace, const void*) { throw std::runtime_error("no"); });
    expect_refused(right,
                   [](void* self, Text, Backtrace, const void*) { new (self) c10::Error("another text"); });
    expect_refused(right, [](void* self, Text text, Backtrace, const void*) {
      make_and_keep<std::runtime_error>(self, *text);
    });
    expect_refused(right, [](void* self, Text text, Backtrace, const void*) {
      make_and_keep<c10::Error>(self, *text);
      static_cast<char*>(self)[1100] = 0;  // more than is there for one
    });
  });
}

}  // namespace
}  // namespace spillway::test
