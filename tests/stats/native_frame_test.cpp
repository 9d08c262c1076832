#include "stats/native_frame.h"

#include <gtest/gtest.h>

#include "stats/call_site.h"

namespace spillway {
namespace {

TEST(NativeFrame, SaysTheFunctionAndWhereItsLineIsFound) {
  EXPECT_EQ(native_text("load(char const*, int)", "/opt/app/bin/app", 0x1189), "load (app+0x1189)");
  EXPECT_EQ(native_text("load(char const*)", "src/load.cu", 14), "load load.cu:14");
  EXPECT_EQ(native_text("??", "/opt/app/bin/app", 0x20), "app+0x20");
  EXPECT_EQ(native_text("main", "app", 1), "main (app+0x1)");
  EXPECT_EQ(native_text("(anonymous namespace)::grow(int)", "app", 1),
            "(anonymous namespace)::grow (app+0x1)");
  EXPECT_EQ(native_text("float* make<float, void (*)(int)>(int)", "app", 1),
            "float* make<float, void (*)(int)> (app+0x1)");
  EXPECT_EQ(native_text("Buffer::operator()(int) const", "app", 1), "Buffer::operator() (app+0x1)");
  EXPECT_EQ(native_text(std::string(500, 'a'), "app", 1), std::string(120, 'a') + "... (app+0x1)");
}

TEST(NativeFrame, IsTheProgramsOwnWhereNoLibraryPassesItOn) {
  EXPECT_TRUE(is_programs_own("load(int)", "/opt/app/bin/app"));
  EXPECT_TRUE(is_programs_own("??", "/opt/app/bin/app"));
  EXPECT_TRUE(is_programs_own("cuda_matmul(int)", "app"));
  EXPECT_FALSE(is_programs_own("cudaMalloc", "/opt/app/bin/app")) << "the static runtime";
  EXPECT_FALSE(is_programs_own("??", "/usr/local/cuda/lib64/libcudart.so.12"));
  EXPECT_FALSE(is_programs_own("__libc_start_main", "/lib/x86_64-linux-gnu/libc.so.6"));
  EXPECT_FALSE(is_programs_own("spw_alloc", "libspillway.so.0"));
  EXPECT_FALSE(is_programs_own("_start", "app"));
  EXPECT_FALSE(is_programs_own("load", ""));
  EXPECT_FALSE(is_programs_own("load", "??"));
}

TEST(CallSite, OfCppIsTheProgramsOwnFunction) {
  CallSite site;
  site.add("cuMemAlloc_v2", "libspillway_preload.so", 0x10);
  site.add("cudaMalloc", "/opt/app", 0x20);
  site.add("load(int)", "/opt/app", 0x30);
  site.add("main", "/opt/app", 0x40);
  EXPECT_EQ(site.text(), "load (app+0x30)");
  site.add("train", "/home/me/train.py", 7);
  EXPECT_EQ(site.text(), "train /home/me/train.py:7") << "a line of Python says more";
}

}  // namespace
}  // namespace spillway
