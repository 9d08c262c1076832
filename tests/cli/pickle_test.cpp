#include "cli/trace/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/support/snapshot_writer.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = PickleValue::Kind;
using namespace std::string_literals;

std::string error_of(const std::string& data) {
  const auto document = PickleDocument::parse(data);
  return document.ok() ? "" : document.status().text();
}

PickleValue root_of(const std::string& data) {
  const auto document = PickleDocument::parse(data);
  EXPECT_TRUE(document.ok()) << document.status().text();
  return document.ok() ? document.value().root() : PickleValue();
}

TEST(Pickle, ReadsNumbersOfEveryWidthAndSign) {
  EXPECT_EQ(root_of("\x80\x02K\xff."s).integer(), 255);
  EXPECT_EQ(root_of("\x80\x02M\xff\xff."s).integer(), 65535);
  EXPECT_EQ(root_of("\x80\x02J\xfe\xff\xff\xff."s).integer(), -2);
  EXPECT_EQ(root_of("\x80\x02\x8a\x00."s).integer(), 0);
  EXPECT_EQ(root_of("\x80\x02\x8a\x01\xff."s).integer(), -1);
  EXPECT_EQ(root_of("\x80\x02\x8a\x06\x00\x00\x00\x00\x00\x7f."s).integer(), 0x7f0000000000);
  EXPECT_TRUE(root_of("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s).is(Kind::kBigInteger));
  EXPECT_EQ(root_of("I-17\n."s).integer(), -17);
  EXPECT_EQ(root_of("L123456789012L\n."s).integer(), 123456789012);
  EXPECT_TRUE(root_of("I01\n."s).is(Kind::kBool));
}

TEST(Pickle, ReadsAContainerFromEveryProtocol) {
  // {"a": [1, "b", (2, 3)]} as Python's pickle.dumps writes it in protocols 0, 1, 2 and 4.
  const std::string dumps[] = {
      "(dp0\nVa\np1\n(lp2\nI1\naVb\np3\na(I2\nI3\ntp4\nas."s,
      "}q\x00X\x01\x00\x00\x00\x61q\x01]q\x02(K\x01X\x01\x00\x00\x00\x62q\x03(K\x02K\x03tq\x04\x65s."s,
      "\x80\x02}q\x00X\x01\x00\x00\x00\x61q\x01]q\x02(K\x01X\x01\x00\x00\x00\x62q\x03K\x02K\x03\x86q\x04\x65s."s,
      "\x80\x04\x95\x16\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01\x61\x94]\x94(K\x01\x8c\x01\x62\x94K\x02K\x03\x86\x94\x65s."s,
  };
  for (const std::string& data : dumps) {
    const auto parsed = PickleDocument::parse(data);
    ASSERT_TRUE(parsed.ok()) << parsed.status().text();
    const PickleDocument& document = parsed.value();
    const auto& pairs = document.pairs(document.root());
    ASSERT_EQ(pairs.size(), 2u);
    EXPECT_EQ(document.text(pairs[0]), "a");
    const auto& items = document.items(pairs[1]);
    ASSERT_EQ(items.size(), 3u);
    EXPECT_EQ(items[0].integer(), 1);
    EXPECT_EQ(document.text(items[1]), "b");
    EXPECT_EQ(document.items(items[2])[1].integer(), 3);
  }
}

TEST(Pickle, LetsStackTracesGo) {
  test::PickleWriter pickle;
  pickle.begin_dict()
      .text("frames")
      .begin_list()
      .integer(1)
      .integer(2)
      .end_list()
      .text("other")
      .begin_list()
      .integer(3);
  const std::string data = pickle.end_list().end_dict().finish();
  const auto document = PickleDocument::parse(data);
  ASSERT_TRUE(document.ok());
  const auto& pairs = document.value().pairs(document.value().root());
  EXPECT_TRUE(document.value().items(pairs[1]).empty());
  EXPECT_EQ(document.value().items(pairs[3]).size(), 1u);
}

TEST(Pickle, RefusesEveryOpcodeThatCouldRunCodeByName) {
  EXPECT_THAT(error_of("\x80\x02"
                       "cos\nsystem\n."s),
              HasSubstr("at byte 2: opcode GLOBAL would run code"));
  EXPECT_THAT(error_of("cos\nsystem\n(S'true'\ntR."s), HasSubstr("not a pickle"));
  EXPECT_THAT(error_of("(S'a'\nios\nsystem\n."s), HasSubstr("INST would run code"));
  EXPECT_THAT(error_of("\x80\x04\x8c\x02os\x8c\x06system\x93."s), HasSubstr("STACK_GLOBAL would run code"));
  EXPECT_THAT(error_of("\x80\x02N)R."s), HasSubstr("REDUCE would run code"));
  EXPECT_THAT(error_of("\x80\x02N}b."s), HasSubstr("BUILD would run code"));
  EXPECT_THAT(error_of("\x80\x02N)\x81."s), HasSubstr("NEWOBJ would run code"));
  EXPECT_THAT(error_of("\x80\x02\x82\x01."s), HasSubstr("EXT1 would run code"));
  EXPECT_THAT(error_of("\x80\x02P1\n."s), HasSubstr("PERSID would run code"));
  EXPECT_THAT(error_of("\x80\x05\x96\x00\x00\x00\x00\x00\x00\x00\x00."s),
              HasSubstr("BYTEARRAY8 does not belong"));
}

TEST(Pickle, RefusesForeignData) {
  EXPECT_EQ(error_of(""), "the file is empty");
  EXPECT_THAT(error_of("# A README\n"), HasSubstr("at byte 0: this is not a pickle"));
  EXPECT_THAT(error_of("{\"a\": 1}"), HasSubstr("not a pickle"));
  EXPECT_THAT(error_of("\x7f"
                       "ELF"s),
              HasSubstr("not a pickle"));
  EXPECT_THAT(error_of(std::string(64, '\0')), StartsWith("at byte "));
  EXPECT_THAT(error_of("\x80\x06N."s), HasSubstr("pickle protocol 6; allowed: 0 to 5"));
  EXPECT_THAT(error_of("\x80\x02N.N."s), HasSubstr("2 bytes follow the end"));
  EXPECT_THAT(error_of("\x80\x02\xff."s), HasSubstr("0xff is not a pickle opcode"));
}

TEST(Pickle, RefusesBrokenStacksAndMemos) {
  EXPECT_THAT(error_of("\x80\x02."s), HasSubstr("missing on the stack"));
  EXPECT_THAT(error_of("\x80\x02"
                       "e."s),
              HasSubstr("mark is missing"));
  EXPECT_THAT(error_of("\x80\x02NNa."s), HasSubstr("not a list"));
  EXPECT_THAT(error_of("\x80\x02NNNs."s), HasSubstr("not a dictionary"));
  EXPECT_THAT(error_of("\x80\x02}(Nu."s), HasSubstr("a key has no value"));
  EXPECT_THAT(error_of("\x80\x02h\x05."s), HasSubstr("memo index 5 was never set"));
  EXPECT_THAT(error_of("\x80\x02Nr\xff\xff\xff\xff."s), HasSubstr("memo index 4294967295 is out of order"));
  EXPECT_THAT(error_of("\x80\x02N(\x86."s), HasSubstr("missing on the stack"));
}

TEST(Pickle, RefusesLengthsPastTheEndWithoutReservingThem) {
  EXPECT_THAT(error_of("\x80\x02X\xff\xff\xff\xff."s), HasSubstr("truncated"));
  EXPECT_THAT(error_of("\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."s), HasSubstr("a text of"));
  EXPECT_THAT(error_of("\x80\x02\x8b\xff\xff\xff\x7f."s), HasSubstr("truncated"));
  EXPECT_THAT(error_of("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff."s), HasSubstr("longer than the file"));
}

TEST(Pickle, NestsAsDeeplyAsTheFileIsLong) {
  constexpr size_t kDepth = 1 << 20;
  std::string data = "\x80\x02";
  data.append(kDepth, ']');
  data.append(kDepth - 1, 'a');
  data += '.';
  EXPECT_TRUE(root_of(data).is(Kind::kList));
  EXPECT_THAT(error_of("\x80\x02"s + std::string(kDepth, '(') + "."), HasSubstr("missing on the stack"));
}

TEST(Pickle, AMemoBombStaysAsSmallAsItsFile) {
  // Each list holds the one before it ten times: 10^40 leaves when spelled out.
  std::string data = "\x80\x02]q\x00"s;
  for (char level = 1; level <= 40; ++level) {
    data += "](";
    for (int i = 0; i < 10; ++i) data += "h"s + static_cast<char>(level - 1);
    data += "eq"s + level;
  }
  // All but the last list are still on the stack, below it; only the top one is the answer.
  EXPECT_TRUE(root_of(data + ".").is(Kind::kList));
}

TEST(Pickle, EveryTruncationIsAnError) {
  const std::string data = test::snapshot({{{"alloc", 0x7f0000000000, 512, 0}}}, {{0x7f0000000000, 512}});
  ASSERT_EQ(error_of(data), "");
  for (size_t length = 0; length < data.size(); ++length) {
    EXPECT_NE(error_of(data.substr(0, length)), "") << length;
  }
}

TEST(Pickle, NoDamageCrashesIt) {
  const std::string data = test::snapshot({{{"alloc", 0x7f0000000000, 512, 0}}}, {{0x7f0000000000, 512}});
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = data;
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    }
    const std::string error = error_of(damaged);
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace spillway
