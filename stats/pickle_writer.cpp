#include "stats/pickle_writer.h"

#include <cassert>
#include <cstring>

namespace spillway {
namespace {

// Opcodes, by the names of CPython's pickletools.
constexpr uint8_t kProto = 0x80;
constexpr uint8_t kStop = '.';
constexpr uint8_t kMark = '(';
constexpr uint8_t kNone = 'N';
constexpr uint8_t kNewTrue = 0x88;
constexpr uint8_t kNewFalse = 0x89;
constexpr uint8_t kBinInt = 'J';
constexpr uint8_t kBinInt1 = 'K';
constexpr uint8_t kBinInt2 = 'M';
constexpr uint8_t kLong1 = 0x8a;
constexpr uint8_t kBinFloat = 'G';
constexpr uint8_t kBinUnicode = 'X';
constexpr uint8_t kEmptyList = ']';
constexpr uint8_t kAppends = 'e';
constexpr uint8_t kTuple = 't';
constexpr uint8_t kEmptyDict = '}';
constexpr uint8_t kSetItems = 'u';
constexpr uint8_t kBinPut = 'q';
constexpr uint8_t kLongBinPut = 'r';
constexpr uint8_t kBinGet = 'h';
constexpr uint8_t kLongBinGet = 'j';

// The length of the UTF-8 character that begins there, or 0 where none does (RFC 3629, section 4).
size_t character_length(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && at(1) < 0xa0) || (first == 0xf0 && at(1) < 0x90);
  const bool surrogate = first == 0xed && at(1) > 0x9f;
  const bool beyond = first == 0xf4 && at(1) > 0x8f;
  return overlong || surrogate || beyond ? 0 : length;
}

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t length = character_length(text);
    if (length == 0) {
      valid += '?';
    } else {
      valid += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return valid;
}

}  // namespace

PickleWriter::PickleWriter(std::string& out) : out_(out) {
  byte(kProto);
  byte(2);
}

void PickleWriter::finish() {
  assert(open_.empty());
  byte(kStop);
}

void PickleWriter::begin_value() {
  if (open_.empty()) return;
  Open& parent = open_.back();
  if (parent.kind == Kind::kTuple) return;
  const uint32_t full = parent.kind == Kind::kDict ? 2 * kBatch : kBatch;
  if (parent.values == full) {
    byte(parent.kind == Kind::kDict ? kSetItems : kAppends);
    parent.values = 0;
  }
  if (parent.values++ == 0) byte(kMark);
}

void PickleWriter::begin(Kind kind) {
  begin_value();
  byte(kind == Kind::kList ? kEmptyList : kind == Kind::kDict ? kEmptyDict : kMark);
  open_.push_back({kind});
}

void PickleWriter::end(Kind kind) {
  assert(!open_.empty() && open_.back().kind == kind);
  assert(kind != Kind::kDict || open_.back().values % 2 == 0);
  const bool has_batch = open_.back().values > 0;
  open_.pop_back();
  if (kind == Kind::kTuple) {
    byte(kTuple);
  } else if (has_batch) {
    byte(kind == Kind::kDict ? kSetItems : kAppends);
  }
}

void PickleWriter::begin_list() {
  begin(Kind::kList);
}
void PickleWriter::end_list() {
  end(Kind::kList);
}
void PickleWriter::begin_tuple() {
  begin(Kind::kTuple);
}
void PickleWriter::end_tuple() {
  end(Kind::kTuple);
}
void PickleWriter::begin_dict() {
  begin(Kind::kDict);
}
void PickleWriter::end_dict() {
  end(Kind::kDict);
}

void PickleWriter::little_endian(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) byte(static_cast<uint8_t>(value >> (8 * i)));
}

void PickleWriter::none() {
  begin_value();
  byte(kNone);
}

void PickleWriter::boolean(bool value) {
  begin_value();
  byte(value ? kNewTrue : kNewFalse);
}

void PickleWriter::integer(int64_t value) {
  begin_value();
  integer_bytes(value);
}

void PickleWriter::integer_bytes(int64_t value) {
  if (value >= 0 && value <= UINT8_MAX) {
    byte(kBinInt1);
    little_endian(static_cast<uint64_t>(value), 1);
  } else if (value >= 0 && value <= UINT16_MAX) {
    byte(kBinInt2);
    little_endian(static_cast<uint64_t>(value), 2);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    byte(kBinInt);
    little_endian(static_cast<uint64_t>(value), 4);
  } else {
    byte(kLong1);
    byte(8);
    little_endian(static_cast<uint64_t>(value), 8);
  }
}

void PickleWriter::unsigned_integer(uint64_t value) {
  begin_value();
  if (value <= INT64_MAX) return integer_bytes(static_cast<int64_t>(value));
  byte(kLong1);  // a ninth byte, for the sign
  byte(9);
  little_endian(value, 8);
  byte(0);
}

void PickleWriter::real(double value) {
  begin_value();
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  byte(kBinFloat);
  for (int i = 7; i >= 0; --i) byte(static_cast<uint8_t>(bits >> (8 * i)));
}

void PickleWriter::text(std::string_view value) {
  begin_value();
  std::string valid = valid_utf8(value);
  const bool may_repeat = valid.size() <= kLongestRepeated;
  if (may_repeat) {
    if (const auto found = texts_.find(valid); found != texts_.end()) return reuse_bytes(found->second);
  }
  byte(kBinUnicode);
  little_endian(valid.size(), 4);
  out_ += valid;
  if (may_repeat && texts_.size() < kMostRepeated) texts_.emplace(std::move(valid), share_bytes());
}

uint32_t PickleWriter::share() {
  return share_bytes();
}

uint32_t PickleWriter::share_bytes() {
  const uint32_t shared = next_shared_++;
  const bool is_short = shared <= UINT8_MAX;
  byte(is_short ? kBinPut : kLongBinPut);
  little_endian(shared, is_short ? 1 : 4);
  return shared;
}

void PickleWriter::reuse(uint32_t shared) {
  begin_value();
  reuse_bytes(shared);
}

void PickleWriter::reuse_bytes(uint32_t shared) {
  const bool is_short = shared <= UINT8_MAX;
  byte(is_short ? kBinGet : kLongBinGet);
  little_endian(shared, is_short ? 1 : 4);
}

}  // namespace spillway
