// Writes a Python pickle, protocol 2, of plain data: None, booleans, numbers, text, lists, tuples,
// dictionaries.
//
// Only opcodes that the web viewer of PyTorch's memory snapshots reads are used, and a list or dictionary
// grows by at most 1000 items at a time: the viewer passes each batch as arguments of one JavaScript call.
// Text that repeats is written once and named afterwards, so keys cost two to five bytes.
//
// Bytes are appended to a string of the caller, which may be written out and cleared between any two calls:
// the writer never looks back. The calls follow the nesting of the data: between begin_dict() and end_dict()
// keys and values alternate, a key being any value, by habit key(). Not thread-safe. Throws std::bad_alloc
// only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace spillway {

class PickleWriter {
 public:
  // Items of one batch, as CPython writes them.
  static constexpr uint32_t kBatch = 1000;

  explicit PickleWriter(std::string& out);

  void none();
  void boolean(bool value);
  void integer(int64_t value);
  void unsigned_integer(uint64_t value);
  void real(double value);
  // UTF-8; bytes that are not become '?'.
  void text(std::string_view value);

  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();
  void begin_dict();
  void end_dict();

  void key(std::string_view name) { text(name); }
  void item(std::string_view name, std::string_view value) {
    key(name);
    text(value);
  }
  void item(std::string_view name, const char* value) { item(name, std::string_view(value)); }
  void item(std::string_view name, int64_t value) {
    key(name);
    integer(value);
  }
  void item(std::string_view name, uint64_t value) {
    key(name);
    unsigned_integer(value);
  }

  // The value written last can be written again by a few bytes: reuse(share()). For what many rows have in
  // common, such as a list of stack frames.
  uint32_t share();
  void reuse(uint32_t shared);

  // Ends the pickle. Everything that was begun has ended, and the root is one value.
  void finish();

 private:
  // Text up to this is looked up, and at most so many different texts: what a writer may keep in memory.
  static constexpr size_t kLongestRepeated = 256;
  static constexpr size_t kMostRepeated = 1 << 16;

  enum class Kind : uint8_t { kList, kTuple, kDict };
  struct Open {
    Kind kind;
    uint32_t values = 0;  // of the batch; of a dictionary, keys count too
  };

  void begin_value();
  void begin(Kind kind);
  void end(Kind kind);
  void byte(uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void little_endian(uint64_t value, int bytes);
  void integer_bytes(int64_t value);
  void reuse_bytes(uint32_t shared);
  uint32_t share_bytes();

  std::string& out_;
  std::vector<Open> open_;
  std::unordered_map<std::string, uint32_t> texts_;
  uint32_t next_shared_ = 0;
};

}  // namespace spillway
