// Errors as values: a code of the C ABI and one line of text that says what, where, and what is allowed.
// Success carries no text and allocates nothing. Not thread-shared.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "include/spillway/status.h"

namespace spillway {

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(spw_status code, std::string text)
      : code_(code), text_(std::make_unique<std::string>(std::move(text))) {}
  // A copy for whose text the host has no memory has none.
  Status(const Status& other) noexcept : code_(other.code_), text_(copy_of(other.text_.get())) {}
  Status(Status&&) noexcept = default;
  Status& operator=(const Status& other) noexcept { return *this = Status(other); }
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  static Status invalid_argument(std::string text) { return {SPW_ERROR_INVALID_ARGUMENT, std::move(text)}; }
  static Status out_of_memory(std::string text) { return {SPW_ERROR_OUT_OF_MEMORY, std::move(text)}; }
  static Status invalid_pointer(std::string text) { return {SPW_ERROR_INVALID_POINTER, std::move(text)}; }
  static Status invalid_state(std::string text) { return {SPW_ERROR_INVALID_STATE, std::move(text)}; }
  static Status unsupported(std::string text) { return {SPW_ERROR_UNSUPPORTED, std::move(text)}; }
  static Status driver(std::string text) { return {SPW_ERROR_DRIVER, std::move(text)}; }
  static Status io(std::string text) { return {SPW_ERROR_IO, std::move(text)}; }
  static Status config(std::string text) { return {SPW_ERROR_CONFIG, std::move(text)}; }
  static Status data_lost(std::string text) { return {SPW_ERROR_DATA_LOST, std::move(text)}; }
  static Status internal(std::string text) { return {SPW_ERROR_INTERNAL, std::move(text)}; }
  // An error for whose text the host has no memory: it takes none.
  static Status without_text(spw_status code) noexcept {
    Status status;
    status.code_ = code;
    return status;
  }
  static Status no_host_memory() noexcept { return without_text(SPW_ERROR_OUT_OF_MEMORY); }

  bool ok() const { return code_ == SPW_OK; }
  spw_status code() const { return code_; }
  const std::string& text() const {
    if (text_) return *text_;
    return ok() ? kNone : kNoHostMemory;
  }

 private:
  static std::unique_ptr<std::string> copy_of(const std::string* text) noexcept {
    try {
      return text == nullptr ? nullptr : std::make_unique<std::string>(*text);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }

  static inline const std::string kNone;
  static inline const std::string kNoHostMemory = "the host has no memory left";

  spw_status code_ = SPW_OK;
  std::unique_ptr<std::string> text_;
};

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  Status take_status() { return std::move(status_); }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T* operator->() { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

// The exception that is being handled, as a Status.
inline Status thrown() noexcept {
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return Status::no_host_memory();
    } catch (const std::exception& error) {
      return Status::internal(error.what());
    } catch (...) {
      return Status::internal("something that is no exception was thrown");
    }
  } catch (...) {
    return Status::no_host_memory();  // for the text
  }
}

// Returns what `body` answers, which is a Status, or what it threw.
template <typename Body>
Status caught(Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return thrown();
  }
}

}  // namespace spillway
