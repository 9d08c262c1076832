// Shows what is taken out of texts, and what must stay.
#include "stats/redact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/support/sample_dump.h"

namespace spillway {
namespace {

TEST(RedactPath, KeepsTheLastComponent) {
  EXPECT_EQ(redact_path("/home/ann/train.py"), "train.py");
  EXPECT_EQ(redact_path("../secret/train.py"), "train.py");
  EXPECT_EQ(redact_path("/home/ann/"), "ann");
  EXPECT_EQ(redact_path("train.py"), "train.py");
  EXPECT_EQ(redact_path("<frozen runpy>"), "<frozen runpy>");
  EXPECT_EQ(redact_path("/"), "/");
  EXPECT_EQ(redact_path(""), "");
}

TEST(RedactText, TakesPathsOutOfWords) {
  EXPECT_EQ(redact_text("python /home/ann/train.py --data=/mnt/ann/set"), "python train.py --data=set");
  EXPECT_EQ(redact_text("in '/home/ann/a b.py:12', then ~/x"), "in 'a b.py:12', then x");
  EXPECT_EQ(redact_text("s3://bucket/ann/weights"), "weights");
  EXPECT_EQ(redact_text("data/ann/set"), "set");
}

TEST(RedactText, LeavesWhatIsNoPath) {
  for (const char* text : {"limit:90%,reserve:2GiB", "tokens/s", "a / b", "layer.0:weight", "", "n/a"}) {
    EXPECT_EQ(redact_text(text), text);
  }
}

TEST(RedactText, TakesWholeNamesOnly) {
  const PrivateNames names{{"node7.example.org", "node7"}, {"ann"}};
  EXPECT_EQ(redact_text("ann@node7.example.org", names), "<user>@<host>");
  EXPECT_EQ(redact_text("ann ran on node7: channel", names), "<user> ran on <host>: channel");
  EXPECT_EQ(redact_text("node70 anna", names), "node70 anna");
  EXPECT_EQ(redact_text("ann", {{""}, {""}}), "ann");
}

TEST(RedactFrame, KeepsFunctionAndFile) {
  std::string name = "forward";
  std::string file = "/home/ann/model.py";
  redact_frame(name, file);
  EXPECT_EQ(name, "forward");
  EXPECT_EQ(file, "model.py");
  name = "/home/ann/lib/libmodel.so(+0x12)";
  redact_frame(name, file);
  EXPECT_EQ(name, "libmodel.so(+0x12)");
}

TEST(Redact, LeavesNoNameInADump) {
  Dump dump = sample_dump();
  dump.config = {{"spill_dir", "/data/ann/spill"}, {"limit", "90%"}};
  dump.devices[0].annotations = {{"ann", 5}};
  dump.devices[0].tiers->regions[0].tag = "node7/weights";
  redact(dump, {{"node7"}, {"ann"}});
  const std::string text = dump_to_json(dump);
  EXPECT_EQ(text.find("ann\""), std::string::npos) << text;
  EXPECT_EQ(text.find("/ann"), std::string::npos) << text;
  EXPECT_EQ(text.find("node7"), std::string::npos) << text;
  EXPECT_NE(text.find("\"limit\": \"90%\""), std::string::npos);
}

TEST(ThisMachine, KnowsTheUser) {
  setenv("USER", "ann", 1);
  const PrivateNames names = this_machine();
  EXPECT_NE(std::find(names.users.begin(), names.users.end(), "ann"), names.users.end());
  EXPECT_FALSE(names.hosts.empty());
}

}  // namespace
}  // namespace spillway
