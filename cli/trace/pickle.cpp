#include "cli/trace/pickle.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

namespace spillway {

namespace {

using Kind = PickleValue::Kind;

// This is what a document may occupy while it is read; a snapshot of a million events needs a quarter of it.
constexpr uint64_t kMaxElements = 64u << 20;

// Opcodes that name or call code, or that no snapshot contains: known only to be refused by name.
struct Refused {
  uint8_t opcode;
  const char* name;
  bool runs_code;
};
constexpr Refused kRefused[] = {{'c', "GLOBAL", true},
                                {0x93, "STACK_GLOBAL", true},
                                {'R', "REDUCE", true},
                                {'b', "BUILD", true},
                                {'i', "INST", true},
                                {'o', "OBJ", true},
                                {0x81, "NEWOBJ", true},
                                {0x92, "NEWOBJ_EX", true},
                                {0x82, "EXT1", true},
                                {0x83, "EXT2", true},
                                {0x84, "EXT4", true},
                                {'P', "PERSID", true},
                                {'Q', "BINPERSID", true},
                                {0x8f, "EMPTY_SET", false},
                                {0x90, "ADDITEMS", false},
                                {0x91, "FROZENSET", false},
                                {0x96, "BYTEARRAY8", false},
                                {0x97, "NEXT_BUFFER", false},
                                {0x98, "READONLY_BUFFER", false}};

}  // namespace

// The stack machine of the pickle format. After the first error every step is refused.
class PickleMachine {
 public:
  PickleMachine(std::string_view data, PickleFrames frames) : data_(data), frames_(frames) {
    document_.data_ = data;
  }

  Result<PickleDocument> run() {
    if (data_.empty()) return Status::invalid_argument("the file is empty");
    while (!stopped_) {
      opcode_at_ = at_;
      if (at_ >= data_.size()) {
        fail("the file ends before the pickle does (truncated?)");
      } else {
        step(static_cast<uint8_t>(data_[at_++]));
      }
      if (!error_.ok()) return std::move(error_);
    }
    if (at_ != data_.size()) {
      fail(fmt::format("{} bytes follow the end of the pickle", data_.size() - at_));
      return std::move(error_);
    }
    return std::move(document_);
  }

 private:
  void fail(std::string_view why) {
    if (error_.ok()) error_ = Status::invalid_argument(fmt::format("at byte {}: {}", opcode_at_, why));
  }

  // --- input ---

  bool take(size_t bytes, std::string_view* out) {
    if (bytes > data_.size() - at_) {
      fail("the file ends inside an object (truncated?)");
      return false;
    }
    *out = data_.substr(at_, bytes);
    at_ += bytes;
    return true;
  }

  // A little-endian number of 1 to 8 bytes.
  bool take_number(size_t bytes, uint64_t* out) {
    std::string_view raw;
    if (!take(bytes, &raw)) return false;
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(raw[i]);
    *out = value;
    return true;
  }

  // The rest of a line of protocol 0, without its end.
  bool take_line(std::string_view* out) {
    const size_t end = data_.find('\n', at_);
    if (end == std::string_view::npos) {
      fail("the file ends inside a line (truncated?)");
      return false;
    }
    *out = data_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }

  // --- stack ---

  void push(const PickleValue& value) { stack_.push_back(value); }

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  bool pop(PickleValue* out) {
    if (stack_.size() <= floor()) {
      fail("an object is missing on the stack");
      return false;
    }
    *out = stack_.back();
    stack_.pop_back();
    return true;
  }

  bool top(PickleValue* out) {
    if (stack_.size() <= floor()) {
      fail("an object is missing on the stack");
      return false;
    }
    *out = stack_.back();
    return true;
  }

  bool pop_mark(size_t* first) {
    if (marks_.empty()) {
      fail("a mark is missing on the stack");
      return false;
    }
    *first = marks_.back();
    marks_.pop_back();
    return true;
  }

  bool count_elements(size_t more) {
    elements_ += more + 1;
    if (elements_ > kMaxElements) {
      fail(fmt::format("more than {} objects", kMaxElements));
      return false;
    }
    return true;
  }

  // A new container holding the stack's objects from `first` on.
  void push_container(Kind kind, size_t first) {
    if (!count_elements(stack_.size() - first)) return;
    document_.tables_.emplace_back(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    stack_.resize(first);
    push({kind, document_.tables_.size() - 1});
  }

  void push_tuple(size_t length) {
    if (stack_.size() - floor() < length) return fail("an object is missing on the stack");
    push_container(Kind::kTuple, stack_.size() - length);
  }

  void append_from(size_t first) {
    if (first == 0 || first <= floor()) return fail("a list is missing on the stack");
    const PickleValue list = stack_[first - 1];
    if (!list.is(Kind::kList)) return fail("items are appended to something that is not a list");
    if (!count_elements(stack_.size() - first)) return;
    auto& items = document_.tables_[list.payload()];
    items.insert(items.end(), stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    stack_.resize(first);
  }

  void set_items_from(size_t first) {
    if (first == 0 || first <= floor()) return fail("a dictionary is missing on the stack");
    const PickleValue dict = stack_[first - 1];
    if (!dict.is(Kind::kDict)) return fail("items are set in something that is not a dictionary");
    if ((stack_.size() - first) % 2 != 0) return fail("a key has no value");
    if (!count_elements(stack_.size() - first)) return;
    release_frames(first);
    auto& pairs = document_.tables_[dict.payload()];
    pairs.insert(pairs.end(), stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    stack_.resize(first);
  }

  // Stack traces are nine tenths of a snapshot and replay reads none of them.
  void release_frames(size_t first) {
    if (frames_ == PickleFrames::kKeep) return;
    for (size_t i = first; i + 1 < stack_.size(); i += 2) {
      const PickleValue& key = stack_[i];
      if (!key.is(Kind::kText) || document_.text(key) != "frames" || !stack_[i + 1].is(Kind::kList)) continue;
      std::vector<PickleValue> frames;
      frames.swap(document_.tables_[stack_[i + 1].payload()]);
      elements_ -= std::min<uint64_t>(elements_, frames.size());
    }
  }

  // --- memo ---

  void memo_put(uint64_t index) {
    PickleValue value;
    if (!top(&value)) return;
    // Writers number the memo one after the other, so an index can never run ahead of the bytes read.
    if (index > opcode_at_) return fail(fmt::format("memo index {} is out of order", index));
    if (index >= memo_.size()) {
      memo_.resize(index + 1);
      memo_set_.resize(index + 1, false);
    }
    memo_[index] = value;
    memo_set_[index] = true;
  }

  void memo_get(uint64_t index) {
    if (index >= memo_.size() || !memo_set_[index])
      return fail(fmt::format("memo index {} was never set", index));
    push(memo_[index]);
  }

  bool line_index(uint64_t* index) {
    std::string_view line;
    if (!take_line(&line)) return false;
    const auto [end, code] = std::from_chars(line.data(), line.data() + line.size(), *index);
    if (code != std::errc() || end != line.data() + line.size()) {
      fail("a memo index is not a number");
      return false;
    }
    return true;
  }

  // --- scalars ---

  void push_counted(Kind kind, size_t length_bytes) {
    uint64_t length = 0;
    std::string_view raw;
    if (!take_number(length_bytes, &length)) return;
    if (length > UINT32_MAX) return fail(fmt::format("a text of {} bytes", length));
    const size_t offset = at_;
    if (take(length, &raw)) push({kind, offset, static_cast<uint32_t>(length)});
  }

  void push_line_text() {
    const size_t offset = at_;
    std::string_view line;
    if (!take_line(&line)) return;
    if (line.size() > UINT32_MAX) return fail("a text of more than 4 GiB");
    push({Kind::kText, offset, static_cast<uint32_t>(line.size())});
  }

  // Protocol 0 writes its byte strings quoted; escapes are kept as they are (no key of a snapshot has one).
  void push_quoted_line() {
    const size_t offset = at_;
    std::string_view line;
    if (!take_line(&line)) return;
    if (line.size() < 2 || (line.front() != '\'' && line.front() != '"') || line.back() != line.front()) {
      return fail("a string is not quoted");
    }
    if (line.size() > UINT32_MAX) return fail("a text of more than 4 GiB");
    push({Kind::kText, offset + 1, static_cast<uint32_t>(line.size() - 2)});
  }

  void push_integer(int64_t value) { push({Kind::kInteger, static_cast<uint64_t>(value)}); }

  void push_little_endian(size_t length_bytes) {
    uint64_t length = 0;
    std::string_view raw;
    if (!take_number(length_bytes, &length) || !take(length, &raw)) return;
    if (length > 8) return push({Kind::kBigInteger, 0});
    uint64_t value = 0;
    for (size_t i = length; i-- > 0;) value = value << 8 | static_cast<uint8_t>(raw[i]);
    if (length > 0 && length < 8 && (static_cast<uint8_t>(raw[length - 1]) & 0x80) != 0) {
      value |= ~uint64_t{0} << (8 * length);
    }
    push_integer(static_cast<int64_t>(value));
  }

  void push_decimal_line(bool allow_bool) {
    std::string_view line;
    if (!take_line(&line)) return;
    if (allow_bool && (line == "00" || line == "01")) return push({Kind::kBool, line[1] == '1' ? 1u : 0u});
    if (!line.empty() && line.back() == 'L') line.remove_suffix(1);
    int64_t value = 0;
    const auto [end, code] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (code == std::errc::result_out_of_range) return push({Kind::kBigInteger, 0});
    if (code != std::errc() || end != line.data() + line.size()) return fail("an integer is not a number");
    push_integer(value);
  }

  // Floats carry times only, which replay does not read.
  void push_float(size_t bytes) {
    std::string_view raw;
    if (take(bytes, &raw)) push({Kind::kFloat, 0});
  }

  void push_float_line() {
    std::string_view line;
    if (take_line(&line)) push({Kind::kFloat, 0});
  }

  void step(uint8_t opcode) {
    if (first_) {
      first_ = false;
      // Protocols 2 and later begin with PROTO; 0 and 1 begin with the object itself.
      if (opcode != 0x80 && std::strchr("(]}lIdLKJMSUTVXGFN)", opcode) == nullptr) return not_a_pickle();
    }
    if (!step_structure(opcode) && !step_scalar(opcode)) refuse(opcode);
  }

  void not_a_pickle() { fail("this is not a pickle"); }

  bool step_structure(uint8_t opcode) {
    uint64_t number = 0;
    size_t first = 0;
    PickleValue value;
    switch (opcode) {
      case 0x80:  // PROTO
        if (take_number(1, &number) && number > 5)
          fail(fmt::format("pickle protocol {}; allowed: 0 to 5", number));
        return true;
      case 0x95:  // FRAME: the frame's bytes are read as they come, its length must be there
        if (take_number(8, &number) && number > data_.size() - at_) {
          fail(fmt::format("a frame of {} bytes is longer than the file (truncated?)", number));
        }
        return true;
      case '.':
        if (pop(&value)) {
          document_.root_ = value;
          stopped_ = true;
        }
        return true;
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':  // POP takes a mark where it is on top
        if (!marks_.empty() && stack_.size() == marks_.back()) {
          marks_.pop_back();
        } else {
          pop(&value);
        }
        return true;
      case '1':
        if (pop_mark(&first)) stack_.resize(first);
        return true;
      case '2':
        if (top(&value)) push(value);
        return true;
      case ']':
        push_container(Kind::kList, stack_.size());
        return true;
      case '}':
        push_container(Kind::kDict, stack_.size());
        return true;
      case ')':
        push_container(Kind::kTuple, stack_.size());
        return true;
      case 'l':
        if (pop_mark(&first)) push_container(Kind::kList, first);
        return true;
      case 't':
        if (pop_mark(&first)) push_container(Kind::kTuple, first);
        return true;
      case 'd':
        if (!pop_mark(&first)) return true;
        if ((stack_.size() - first) % 2 != 0) {
          fail("a key has no value");
        } else {
          release_frames(first);
          push_container(Kind::kDict, first);
        }
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        push_tuple(opcode - 0x84u);
        return true;
      case 'a':
        if (stack_.empty()) {
          fail("an object is missing on the stack");
        } else {
          append_from(stack_.size() - 1);
        }
        return true;
      case 'e':
        if (pop_mark(&first)) append_from(first);
        return true;
      case 's':
        if (stack_.size() < 2) {
          fail("an object is missing on the stack");
        } else {
          set_items_from(stack_.size() - 2);
        }
        return true;
      case 'u':
        if (pop_mark(&first)) set_items_from(first);
        return true;
      case 'p':
        if (line_index(&number)) memo_put(number);
        return true;
      case 'q':
        if (take_number(1, &number)) memo_put(number);
        return true;
      case 'r':
        if (take_number(4, &number)) memo_put(number);
        return true;
      case 0x94:
        memo_put(memo_.size());
        return true;
      case 'g':
        if (line_index(&number)) memo_get(number);
        return true;
      case 'h':
        if (take_number(1, &number)) memo_get(number);
        return true;
      case 'j':
        if (take_number(4, &number)) memo_get(number);
        return true;
      default:
        return false;
    }
  }

  bool step_scalar(uint8_t opcode) {
    uint64_t number = 0;
    switch (opcode) {
      case 'N':
        push({});
        return true;
      case 0x88:
      case 0x89:
        push({Kind::kBool, opcode == 0x88 ? 1u : 0u});
        return true;
      case 'K':
        if (take_number(1, &number)) push_integer(static_cast<int64_t>(number));
        return true;
      case 'M':
        if (take_number(2, &number)) push_integer(static_cast<int64_t>(number));
        return true;
      case 'J':
        if (take_number(4, &number)) push_integer(static_cast<int32_t>(static_cast<uint32_t>(number)));
        return true;
      case 0x8a:
        push_little_endian(1);
        return true;
      case 0x8b:
        push_little_endian(4);
        return true;
      case 'I':
        push_decimal_line(true);
        return true;
      case 'L':
        push_decimal_line(false);
        return true;
      case 'G':
        push_float(8);
        return true;
      case 'F':
        push_float_line();
        return true;
      case 'V':
        push_line_text();
        return true;
      case 'S':
        push_quoted_line();
        return true;
      case 'U':  // SHORT_BINSTRING, BINSTRING: how Python 2 wrote its text
      case 0x8c:
        push_counted(Kind::kText, 1);
        return true;
      case 'T':
      case 'X':
        push_counted(Kind::kText, 4);
        return true;
      case 0x8d:
        push_counted(Kind::kText, 8);
        return true;
      case 'C':
        push_counted(Kind::kBytes, 1);
        return true;
      case 'B':
        push_counted(Kind::kBytes, 4);
        return true;
      case 0x8e:
        push_counted(Kind::kBytes, 8);
        return true;
      default:
        return false;
    }
  }

  void refuse(uint8_t opcode) {
    for (const Refused& refused : kRefused) {
      if (refused.opcode != opcode) continue;
      return fail(refused.runs_code
                      ? fmt::format("opcode {} would run code, which no memory snapshot needs", refused.name)
                      : fmt::format("opcode {} does not belong in a memory snapshot", refused.name));
    }
    fail(fmt::format("0x{:02x} is not a pickle opcode", opcode));
  }

  std::string_view data_;
  const PickleFrames frames_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  bool first_ = true;
  bool stopped_ = false;
  uint64_t elements_ = 0;
  Status error_;
  std::vector<PickleValue> stack_;
  std::vector<size_t> marks_;
  std::vector<PickleValue> memo_;
  std::vector<bool> memo_set_;
  PickleDocument document_;
};

Result<PickleDocument> PickleDocument::parse(std::string_view data, PickleFrames frames) {
  return PickleMachine(data, frames).run();
}

}  // namespace spillway
