#include "cli/launch/served.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/folder.h"
#include "tests/support/sizes.h"

namespace spillway {
namespace {

using test::kGiB;
using test::kMiB;

LiveRow row(int64_t allocations, uint64_t requested, uint64_t allocated_peak, uint64_t reserved_peak) {
  LiveRow out;
  spw_stats& stats = out.now.stats;
  stats.allocation.all.allocated = allocations;
  stats.requested_bytes.all.allocated = static_cast<int64_t>(requested);
  stats.allocated_bytes.all.peak = static_cast<int64_t>(allocated_peak);
  stats.reserved_bytes.all.peak = static_cast<int64_t>(reserved_peak);
  return out;
}

LiveReading page(const std::string& program, int64_t rank, std::vector<LiveRow> devices) {
  LiveReading out;
  out.program = program;
  out.rank = rank;
  out.devices = std::move(devices);
  return out;
}

TEST(Served, OneProcessByItsName) {
  EXPECT_EQ(served_line({page("python train.py", 0, {row(1'204'332, 3 * kGiB, 61 * kGiB, 62 * kGiB)})}),
            "python train.py: 1,204,332 allocations served, 3.000 GiB in all; peak 61.000 GiB allocated in "
            "62.000 GiB reserved");
}

TEST(Served, OfSeveralTheirSumAndWhoHadTheHighestPeak) {
  LiveRow second = row(20, 2 * kGiB, 5 * kGiB, 6 * kGiB);
  second.now.ordinal = 1;
  second.now.stats.num_ooms = 2;
  EXPECT_EQ(served_line({page("python a.py", 0, {row(10, 1 * kGiB, 3 * kGiB, 4 * kGiB)}),
                         page("python a.py", 3, {row(1, kMiB, kMiB, 2 * kMiB), second})}),
            "2 processes: 31 allocations served, 3.001 GiB in all; peak 5.000 GiB allocated in 6.000 GiB "
            "reserved (rank 3, device 1); 2 out of memory");
}

// A process that never used a device is none of those that were served.
TEST(Served, WhoUsedNoDeviceIsNotCounted) {
  EXPECT_EQ(served_line({}), "");
  EXPECT_EQ(served_line({page("sh", 0, {})}), "");
  const std::string line =
      served_line({page("sh", 0, {}), page("python b.py", 0, {row(1, kMiB, kMiB, 2 * kMiB)})});
  EXPECT_EQ(line.rfind("python b.py: 1 allocations served", 0), 0u) << line;
}

// A page is a file of somebody else's: what cannot be is nothing.
TEST(Served, CountersBelowZeroAreZero) {
  EXPECT_EQ(served_line({page("x", 0, {row(-5, 0, 0, 0)})}),
            "x: 0 allocations served, 0 B in all; peak 0 B allocated in 0 B reserved");
}

class ServedPagesTest : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("SPILLWAY_CONF");
    ::unsetenv("SPILLWAY_LIVE_LINKS");
  }
  static void configure(const std::string& conf) { ::setenv("SPILLWAY_CONF", conf.c_str(), 1); }

  test::Folder folder_;
};

TEST_F(ServedPagesTest, ProgramsAreToldOfAFolderThatIsGoneAfterwards) {
  configure("limit:1GiB,live_dir:" + folder_.path());
  std::string links;
  {
    const ServedPages pages;
    ASSERT_TRUE(pages.is_watching());
    links = std::getenv("SPILLWAY_LIVE_LINKS");
    EXPECT_EQ(std::filesystem::path(links).parent_path(), std::filesystem::path(folder_.path()));
    EXPECT_TRUE(std::filesystem::is_directory(links));
    EXPECT_TRUE(pages.read().empty());
    std::ofstream(links + "/1") << "no page";  // nothing in the folder is believed
    EXPECT_TRUE(pages.read().empty());
  }
  EXPECT_FALSE(std::filesystem::exists(links));
}

TEST_F(ServedPagesTest, NothingIsWatchedWherePagesAreOff) {
  ::setenv("SPILLWAY_LIVE_LINKS", "/left/over", 1);  // of a run around this one
  configure("live:on,live_dir:" + folder_.path() + ",live:off");
  const ServedPages pages;
  EXPECT_FALSE(pages.is_watching());
  EXPECT_EQ(std::getenv("SPILLWAY_LIVE_LINKS"), nullptr);
  EXPECT_TRUE(pages.read().empty());
}

TEST_F(ServedPagesTest, AFolderThatIsNotThereServesNobody) {
  configure("live_dir:/no/such/folder");
  const ServedPages pages;
  EXPECT_FALSE(pages.is_watching());
  EXPECT_EQ(std::getenv("SPILLWAY_LIVE_LINKS"), nullptr);
}

}  // namespace
}  // namespace spillway
