// A reader for pickles that hold plain data, protocols 0 to 5: numbers, text, lists, tuples and dictionaries.
//
// It executes nothing: every opcode that could name or call code (GLOBAL, REDUCE, BUILD and their kin) is
// refused by name, and so is what no memory snapshot contains (sets, byte arrays, out-of-band buffers).
// Objects are rows of flat tables that refer to each other by index, so nesting costs neither recursion nor a
// deep destructor, and a memo bomb stays as small as the file. Text is not copied: it stays a range of the
// input, which must outlive the document. Lists that are stored under the key "frames" (stack traces, most of
// a snapshot's bytes) are read and let go unless they are asked for.
//
// Cost: one pass; about 50 ns and at most 40 bytes for each opcode. Not thread-shared.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "driver/status.h"

namespace spillway {

class PickleValue {
 public:
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInteger,
    kBigInteger,
    kFloat,
    kText,
    kBytes,
    kList,
    kTuple,
    kDict
  };

  PickleValue() = default;
  PickleValue(Kind kind, uint64_t payload, uint32_t length = 0)
      : payload_(payload), length_(length), kind_(kind) {}

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  int64_t integer() const { return static_cast<int64_t>(payload_); }  // kInteger and kBool
  uint64_t payload() const { return payload_; }  // offset of text and bytes, index of lists and dictionaries
  uint32_t length() const { return length_; }    // bytes of text

 private:
  uint64_t payload_ = 0;
  uint32_t length_ = 0;
  Kind kind_ = Kind::kNone;
};

enum class PickleFrames : uint8_t { kDrop, kKeep };

class PickleDocument {
 public:
  // The document of a whole file. An error is one line that says at which byte and why.
  static Result<PickleDocument> parse(std::string_view data, PickleFrames frames = PickleFrames::kDrop);

  const PickleValue& root() const { return root_; }
  std::string_view text(const PickleValue& value) const {
    return data_.substr(value.payload(), value.length());
  }
  // Elements of a list or tuple.
  const std::vector<PickleValue>& items(const PickleValue& value) const { return tables_[value.payload()]; }
  // A dictionary's keys and values alternating, in the order of the file; the last of equal keys counts.
  const std::vector<PickleValue>& pairs(const PickleValue& value) const { return tables_[value.payload()]; }
  size_t size() const { return data_.size(); }

 private:
  friend class PickleMachine;
  std::string_view data_;
  PickleValue root_;
  std::vector<std::vector<PickleValue>> tables_;
};

}  // namespace spillway
