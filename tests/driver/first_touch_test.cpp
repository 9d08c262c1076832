#include "driver/first_touch.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace spillway::test {
namespace {

TEST(HostNodes, OneOfMemoryAloneHasNoProcessors) {
  const std::filesystem::path nodes = std::filesystem::path(testing::TempDir()) / "nodes";
  const auto write = [&](int node, const char* processors) {
    const std::filesystem::path folder = nodes / ("node" + std::to_string(node));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "cpulist") << processors;
  };
  write(0, "0-15,32-47\n");
  write(1, "\n");
  EXPECT_TRUE(has_processors(0, nodes.string()));
  EXPECT_FALSE(has_processors(1, nodes.string()));
  EXPECT_TRUE(has_processors(2, nodes.string())) << "the kernel does not say";
  std::filesystem::remove_all(nodes);
}

}  // namespace
}  // namespace spillway::test
