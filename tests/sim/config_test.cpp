#include <gmock/gmock.h>
#include <stdlib.h>

#include "tests/support/folder.h"
#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ConfigTest : public DeviceTest {};

struct BadConfig {
  const char* text;
  const char* key;
  const char* allowed;
};

constexpr BadConfig kBad[] = {
    {"capacity:banana", "'capacity', value 'banana'", "16GiB"},
    {"capacity:", "'capacity', value ''", "size"},
    {"capacity", "'capacity'", "size"},
    {"capacity:1GB", "'1GB'", "size"},
    {"capacity:17TiB", "'17TiB'", "at most 16TiB"},
    {"capacity:99999999999999999999999", "'capacity'", "size"},
    {"capacity:1MiB", "'capacity'", "granularity"},
    {"devices:0", "'devices', value '0'", "1 to 16"},
    {"devices:17", "'devices', value '17'", "1 to 16"},
    {"granularity:3MiB", "'granularity', value '3MiB'", "power of two"},
    {"backing:disk", "'backing', value 'disk'", "memfd or none"},
    {"completion:soon", "'completion', value 'soon'", "instant, late or run-ahead"},
    {"seed:-1", "'seed', value '-1'", "number"},
    {"set_access_cost:cheap", "'set_access_cost'", "per-call or per-mapping"},
    {"costs:/nonexistent/costs.json", "'costs', value '/nonexistent/costs.json'", "cannot be read"},
    {"shared:", "'shared', value ''", "name of a file"},
    {"shared:/nonexistent/account", "'shared', value '/nonexistent/account'", "No such file"},
    {"vmm:maybe", "'vmm', value 'maybe'", "on or off"},
    {"mig:2", "'mig', value '2'", "0 or 1"},
    {"version:12.8", "'version', value '12.8'", "1000*major"},
    {"races:1", "'races', value '1'", "on or off"},
    {"at_exit:gone", "'at_exit', value 'gone'", "stay or end"},
    {"fault:cuMemMap", "'fault', value 'cuMemMap'", "ENTRY_POINT@N"},
    {"fault:cuMemMap@0", "'fault', value 'cuMemMap@0'", "N from 1"},
    {"fault:cuMemMap@1=0", "'fault', value 'cuMemMap@1=0'", "CUresult 1 to 999"},
    {"fault:cuMemNap@1", "'cuMemNap'", "entry point"},
    {"colour:red", "unknown key 'colour'", "capacity, devices"},
    {"capacity:1GiB,,devices:2", "unknown key ''", "capacity"},
};

TEST_F(ConfigTest, EachMistakeIsOneLineWithKeyValueAndWhatIsAllowed) {
  alloc();
  for (const BadConfig& bad : kBad) {
    EXPECT_EQ(spwSimConfigure(bad.text), CUDA_ERROR_INVALID_VALUE) << bad.text;
    EXPECT_THAT(spwSimLastError(), AllOf(HasSubstr("SPILLWAY_SIM: "), HasSubstr(bad.key),
                                         HasSubstr(bad.allowed), Not(HasSubstr("\n"))));
  }
  EXPECT_EQ(spwSimPhysicalBytes(0), kPage) << "a malformed configuration changes nothing";
}

TEST_F(ConfigTest, AMigInstanceIsNamedSoAndHasNoPeers) {
  int can = 0;
  char name[64] = {};
  start("devices:2");
  SIM_OK(cuDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  start("devices:2,mig:1");
  SIM_OK(cuDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 0);
  SIM_OK(cuDeviceGetName(name, sizeof name, 0));
  EXPECT_THAT(name, HasSubstr(" MIG "));
}

TEST_F(ConfigTest, ValuesAreTaken) {
  start("capacity:64MiB,devices:3,granularity:64KiB,version:12080,seed:7,completion:late");
  int count = 0;
  SIM_OK(cuDeviceGetCount(&count));
  EXPECT_EQ(count, 3);
  size_t bytes = 0;
  SIM_OK(cuDeviceTotalMem(&bytes, 2));
  EXPECT_EQ(bytes, 64 * kMiB);
  EXPECT_EQ(cuDeviceTotalMem(&bytes, 3), CUDA_ERROR_INVALID_DEVICE);
  const CUmemAllocationProp prop = device_memory();
  SIM_OK(cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(bytes, size_t{64} << 10);
  int version = 0;
  SIM_OK(cuDriverGetVersion(&version));
  EXPECT_EQ(version, 12080);
}

TEST_F(ConfigTest, AConfigurationIsAFreshProcess) {
  const CUdeviceptr block = alloc();
  const CUstream work = stream();
  const CUmemGenericAllocationHandle handle = create();
  ASSERT_EQ(spwSimConfigure("destroyed_streams:report"), CUDA_SUCCESS);
  CUcontext current = reinterpret_cast<CUcontext>(1);
  SIM_OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, nullptr);
  EXPECT_EQ(cuStreamQuery(work), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetAddressRange(nullptr, nullptr, block), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(spwSimPhysicalBytes(0), 0u);
}

TEST_F(ConfigTest, DefaultsOfTheEnvironmentGoBeforeEveryConfiguration) {
  setenv("SPILLWAY_SIM_DEFAULTS", "capacity:64MiB,devices:2", 1);
  start("devices:3");
  size_t bytes = 0;
  SIM_EXPECT_OK(cuDeviceTotalMem(&bytes, 2));
  EXPECT_EQ(bytes, 64 * kMiB);
  setenv("SPILLWAY_SIM_DEFAULTS", "banana", 1);
  EXPECT_EQ(spwSimConfigure(""), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(spwSimLastError(), HasSubstr("SPILLWAY_SIM_DEFAULTS: unknown key 'banana'"));
  unsetenv("SPILLWAY_SIM_DEFAULTS");
}

TEST_F(ConfigTest, CostsAreThoseOfACheapOrADearRun) {
  const auto of_one_handle = [&](const char* text) {
    start(text);
    const uint64_t before = spwSimVirtualNs();
    (void)create();
    return spwSimVirtualNs() - before;
  };
  EXPECT_EQ(of_one_handle(""), 7600u);
  EXPECT_EQ(of_one_handle("costs:cheap"), 7600u);
  EXPECT_EQ(of_one_handle("costs:dear"), 193000u);
}

TEST_F(ConfigTest, CostFilesReplaceRows) {
  const test::Folder folder;
  const auto configure = [&](const char* text) {
    return spwSimConfigure(("costs:" + folder.write("costs.json", text)).c_str());
  };
  ASSERT_EQ(configure(R"({"costs_ns": {"cuDriverGetVersion": 123.0}, "other": 1})"), CUDA_SUCCESS);
  int version = 0;
  const uint64_t before = spwSimVirtualNs();
  SIM_OK(cuDriverGetVersion(&version));
  EXPECT_EQ(spwSimVirtualNs() - before, 123u);
  EXPECT_EQ(configure("{"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(configure("[]"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(configure("{}"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(spwSimLastError(), HasSubstr("costs_ns"));
  EXPECT_EQ(configure(R"({"costs_ns": {"cuNothing": 1}})"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(spwSimLastError(), HasSubstr("cuNothing"));
  EXPECT_EQ(configure(R"({"costs_ns": {"cuMemMap": -1}})"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(configure(R"({"costs_ns": {"cuMemMap": "fast"}})"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(spwSimLastError(), HasSubstr("cuMemMap"));
}

// cuInit reads the environment once in a process, so each of these runs in a process of its own.
void init_under(const char* text) {
  setenv("SPILLWAY_SIM", text, 1);
  const CUresult first = cuInit(0);
  const CUresult second = cuInit(0);
  int count = -1;
  const CUresult asked = cuDeviceGetCount(&count);
  _exit(first == CUDA_ERROR_INVALID_VALUE && second == first && asked == CUDA_ERROR_NOT_INITIALIZED ? 3
                                                                                                    : count);
}

// Ends with 3 where a process with this CUDA_VISIBLE_DEVICES sees these devices of the machine, in this
// order.
void init_that_sees(const std::string& text, const std::vector<int>& expected) {
  setenv("CUDA_VISIBLE_DEVICES", text.c_str(), 1);
  setenv("SPILLWAY_SIM", "devices:4", 1);
  int count = 0;
  if (expected.empty()) {
    const bool none =
        cuInit(0) == CUDA_ERROR_NO_DEVICE && cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(none ? 3 : 1);
  }
  bool ok = cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&count) == CUDA_SUCCESS;
  std::vector<int> found;
  for (int device = 0; ok && device < count; ++device) {
    CUuuid uuid{};
    char bus[16];
    CUdevice by_bus = -1;
    ok = cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS &&
         cuDeviceGetPCIBusId(bus, sizeof bus, device) == CUDA_SUCCESS &&
         cuDeviceGetByPCIBusId(&by_bus, bus) == CUDA_SUCCESS && by_bus == device;
    found.push_back(uuid.bytes[15]);
  }
  _exit(ok && found == expected ? 3 : 1);
}

// CUDA C++ Programming Guide, "CUDA Environment Variables"; PyTorch counts devices by the same rules by
// itself.
TEST(ConfigDeathTest, AProcessSeesTheDevicesThatItIsGiven) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string third = "GPU-7370696c-6c77-6179-2d73-696d2d303002";
  const std::vector<std::pair<std::string, std::vector<int>>> cases = {
      {"3,1", {3, 1}},
      {third, {2}},
      {third + ",0", {2, 0}},
      {"MIG" + third.substr(3), {2}},
      {"0,7,1", {0}},     // up to the first that is none
      {"2,-1,1", {2}},    // as programs hide the rest
      {"1,GPU-,0", {1}},  // the beginning of more than one
      {"", {}},
      {"-1", {}},
      {"no", {}},
      {"4", {}},
      {"1,1,2", {}},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EXIT(init_that_sees(text, expected), ::testing::ExitedWithCode(3), "") << text;
  }
}

TEST(ConfigDeathTest, InitReadsTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(init_under("devices:5"), ::testing::ExitedWithCode(5), "");
  EXPECT_EXIT(init_under("devices:many"), ::testing::ExitedWithCode(3),
              "SPILLWAY_SIM: key 'devices', value 'many'; allowed: 1 to 16");
}

}  // namespace
}  // namespace spillway::sim_test
