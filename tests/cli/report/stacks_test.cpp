#include "cli/report/stacks.h"

#include "stats/call_site.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(Stacks, EqualOnesAreHeldOnce) {
  Stacks stacks;
  const uint32_t inner = stacks.frame("forward", "/home/me/model.py", 20);
  const uint32_t outer = stacks.frame("main", "/home/me/train.py", 7);
  EXPECT_EQ(stacks.frame("forward", "/home/me/model.py", 20), inner);
  EXPECT_NE(stacks.frame("forward", "/home/me/model.py", 21), inner);
  EXPECT_EQ(stacks.frame(outer).function, "main");
  const uint32_t stack = stacks.stack({inner, outer});
  EXPECT_EQ(stacks.stack({inner, outer}), stack);
  EXPECT_NE(stacks.stack({outer, inner}), stack);
  EXPECT_EQ(stacks.frames_of(stack), (std::vector<uint32_t>{inner, outer}));
  EXPECT_EQ(stacks.size(), 3u);
}

// What no stack was recorded of has the number that has no frames.
TEST(Stacks, NoFramesAreNoStack) {
  Stacks stacks;
  EXPECT_EQ(stacks.stack({}), 0u);
  EXPECT_TRUE(stacks.frames_of(0).empty());
  EXPECT_EQ(stacks.size(), 1u);
}

// Functions whose names have the separator of another's file are still two.
TEST(Stacks, FramesAreToldApartByEachPart) {
  Stacks stacks;
  EXPECT_NE(stacks.frame("a", "b.py", 1), stacks.frame("b.py", "a", 1));
  EXPECT_NE(stacks.frame("a", "", 11), stacks.frame("a", "1", 1));
}

struct Shown {
  ListedFrame frame;
  std::string text;
  std::string module;
};

TEST(Stacks, AFrameIsShownAsWhoReadsItKnowsIt) {
  const std::vector<Shown> cases = {
      {{"train", "/home/me/train.py", 14}, "train (train.py:14)", "train"},
      {{"<module>", "train.py", 3}, "<module> (train.py:3)", "train"},
      {{"forward", "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134},
       "forward (linear.py:134)",
       "torch.nn.modules.linear"},
      {{"f", "/usr/lib/python3/dist-packages/numpy/core.py", 1}, "f (core.py:1)", "numpy.core"},
      {{"run", "/usr/lib/python3.11/threading.py", 982}, "run (threading.py:982)", "threading"},
      {{"call", "/usr/lib/python3.12/asyncio/events.py", 84}, "call (events.py:84)", "asyncio.events"},
      // What is not Python is its operator, or nothing that a reader would know.
      {{"torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "", 0},
       "MmBackward0",
       "MmBackward0"},
      {{"at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "Operators.cpp", 4},
       "at::_ops::mm",
       "at::_ops::mm"},
      {{"c10::cuda::CUDACachingAllocator::malloc", "CUDACachingAllocator.cpp", 9}, "", ""},
      {{"load(int)", "/home/me/app", 0x1189}, "load (app+0x1189)", "app"},
      {{"", "", 0}, "", ""}};
  for (const Shown& shown : cases) {
    EXPECT_EQ(shown.frame.text(), shown.text) << shown.frame.function;
    EXPECT_EQ(shown.frame.module(), shown.module) << shown.frame.file;
  }
}

// Names of files come from other machines, cut or empty.
TEST(Stacks, OddNamesAreNoTrouble) {
  EXPECT_EQ((ListedFrame{"f", ".py", 1}.module()), "");
  EXPECT_EQ((ListedFrame{"f", "/", 1}.text()), "");
  EXPECT_EQ((ListedFrame{"f", "/site-packages/a.py", 1}.module()), "a");
  EXPECT_EQ((ListedFrame{"f", "/x/lib/python3.py", 1}.module()), "python3");
  EXPECT_EQ(operator_of("at::_ops::mm"), "at::_ops::mm");
  EXPECT_EQ(operator_of("torch::autograd::generated::MmBackward0"), "MmBackward0");
  EXPECT_EQ(operator_of("at::native::mm"), "");
}

}  // namespace
}  // namespace spillway
