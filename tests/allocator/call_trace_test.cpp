#include "allocator/call_trace.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace spillway::test {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

// Behind a call, so that it is none in the place of another's return.
void stay() {
  asm volatile("" ::: "memory");
}

// Captures `depth` calls further in, as from the function that called this.
[[gnu::noinline]] void capture_below(int depth, const void* caller, CallTrace* out) {
  if (depth == 0) {
    *out = CallTrace::capture(caller);
  } else {
    capture_below(depth - 1, caller, out);
  }
  stay();
}
[[gnu::noinline]] const void* enter(int depth, CallTrace* out) {
  const void* caller = __builtin_return_address(0);
  capture_below(depth, caller, out);
  stay();
  return caller;
}
// The same with a caller that is in no frame.
[[gnu::noinline]] const void* enter_unknown(CallTrace* out) {
  capture_below(0, nullptr, out);
  stay();
  return __builtin_return_address(0);
}

TEST(CallTrace, BeginsWithTheFrameThatReturnsToTheCaller) {
  for (const int depth : {0, 1, 5, 12}) {
    CallTrace trace;
    const void* caller = enter(depth, &trace);
    ASSERT_GT(trace.count, 1u) << "this function, and what called it";
    EXPECT_EQ(trace.frames[0], caller) << depth;
  }
}

TEST(CallTrace, KeepsTheInnermostFramesOfADeepCall) {
  CallTrace trace;
  capture_below(30, nullptr, &trace);
  EXPECT_EQ(trace.count, CallTrace::kDepth);
  EXPECT_TRUE(std::none_of(trace.frames.begin(), trace.frames.end(),
                           [](const void* frame) { return frame == nullptr; }));
}

TEST(CallTrace, BeginsHereWhereNoFrameReturnsToTheCaller) {
  CallTrace trace;
  const void* caller = enter_unknown(&trace);
  ASSERT_GT(trace.count, 1u);
  EXPECT_NE(trace.frames[0], caller);
  EXPECT_NE(std::find(trace.frames.begin(), trace.frames.end(), caller), trace.frames.end());
}

TEST(CallTrace, TheTextHasALineForEachFrame) {
  CallTrace trace;
  EXPECT_EQ(trace.text("  "), "");
  trace.count = 2;
  trace.frames[0] = reinterpret_cast<void*>(0x10);
  trace.frames[1] = reinterpret_cast<void*>(0x20);
  trace.frames[2] = reinterpret_cast<void*>(0x30);  // beyond its count
  EXPECT_EQ(trace.text("  "), "  #0 0x10\n  #1 0x20\n");
  EXPECT_EQ(trace.text(""), "#0 0x10\n#1 0x20\n");
}

TEST(CallTrace, AFrameIsNamedByFunctionAndModule) {
  void* const library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  CallTrace trace;
  trace.count = 1;
  trace.frames[0] = static_cast<char*>(dlsym(library, "qsort")) + 2;
  EXPECT_THAT(trace.text("    "), MatchesRegex("    #0 qsort\\+0x2 \\(libc\\.so\\.6\\+0x[0-9a-f]+\\)\n"));
  dlclose(library);
}

TEST(CallTrace, AFunctionThatIsNotExportedHasItsNameToo) {
  CallTrace trace;
  enter(0, &trace);
  trace.count = 1;
  trace.frames[0] = reinterpret_cast<void*>(&enter);
  const std::string program = program_invocation_short_name;
  EXPECT_THAT(trace.text(""), HasSubstr("::enter(int, spillway::CallTrace*)+0x0 (" + program + "+0x"));
}

}  // namespace
}  // namespace spillway::test
