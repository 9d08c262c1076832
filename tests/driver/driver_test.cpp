// Opening a driver: which library, which functions, and one clear line where it cannot be.
#include "driver/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "driver/context.h"
#include "driver/memory.h"

namespace spillway {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::shared_ptr<const Driver> open_fake(const char* path) {
  Result<std::shared_ptr<const Driver>> driver = Driver::open(path);
  EXPECT_TRUE(driver.ok()) << driver.status().text();
  return driver.ok() ? driver.value() : nullptr;
}

template <typename Function>
Function* control(const Driver& driver, const char* name) {
  return reinterpret_cast<Function*>(driver.find(name));
}

TEST(DriverOpen, NamesTheFileThatDoesNotExist) {
  const auto driver = Driver::open("/nonexistent/libcuda.so.1");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.status().code(), SPW_ERROR_UNSUPPORTED);
  EXPECT_THAT(driver.status().text(), AllOf(HasSubstr("/nonexistent/libcuda.so.1"), HasSubstr("CUDA 12.0"),
                                            HasSubstr("SPILLWAY_LIBCUDA")));
}

TEST(DriverOpen, TakesTheLibraryThatTheEnvironmentNames) {
  ASSERT_EQ(setenv("SPILLWAY_LIBCUDA", FAKE_COMPLETE, 1), 0);
  const auto driver = Driver::open();
  ASSERT_TRUE(driver.ok()) << driver.status().text();
  EXPECT_EQ(driver.value()->path(), FAKE_COMPLETE);
  EXPECT_EQ(driver.value()->version(), 12040);
}

TEST(DriverOpen, AnArgumentOutranksTheEnvironment) {
  ASSERT_EQ(setenv("SPILLWAY_LIBCUDA", "/nonexistent/libcuda.so.1", 1), 0);
  EXPECT_TRUE(Driver::open(FAKE_COMPLETE).ok());
}

TEST(DriverOpen, RefusesALibraryThatIsNoDriver) {
  const auto driver = Driver::open(FAKE_EMPTY);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.status().code(), SPW_ERROR_UNSUPPORTED);
  EXPECT_THAT(driver.status().text(), AllOf(HasSubstr(FAKE_EMPTY), HasSubstr("cuInit")));
}

TEST(DriverOpen, RefusesATooOldDriverAndSaysWhatIsNeeded) {
  const auto driver = Driver::open(FAKE_OLD);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.status().code(), SPW_ERROR_UNSUPPORTED);
  EXPECT_THAT(driver.status().text(), AllOf(HasSubstr(FAKE_OLD), HasSubstr("11.8"), HasSubstr("12.0")));
}

TEST(DriverOpen, NamesTheRequiredFunctionThatIsMissing) {
  const auto driver = Driver::open(FAKE_INCOMPLETE);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.status().code(), SPW_ERROR_UNSUPPORTED);
  EXPECT_THAT(driver.status().text(), AllOf(HasSubstr(FAKE_INCOMPLETE), HasSubstr("lacks cuMemcpyAsync;")));
}

TEST(DriverOpen, PassesOnThatThereIsNoDevice) {
  const auto driver = Driver::open(FAKE_NO_DEVICE);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.status().code(), SPW_ERROR_DRIVER);
  EXPECT_EQ(driver.status().text(), "cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)");
}

TEST(DriverOpen, PrefersWhatCuGetProcAddressGivesAndAsksForTheSignatureItWasBuiltFor) {
  const auto driver = open_fake(FAKE_PROC_ADDRESS);
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(driver->cuMemcpyAsync(0, 0, 0, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(control<int()>(*driver, "fake_oldest_memcpy_calls")(), 0);
}

TEST(DriverOpen, FindsByExportedNameWhatCuGetProcAddressDoesNotKnow) {
  const auto driver = open_fake(FAKE_PROC_ADDRESS);
  ASSERT_NE(driver, nullptr);
  EXPECT_NE(driver->cuMemAlloc, nullptr);
  EXPECT_TRUE(driver->has_vmm());
}

TEST(DriverWithoutVmm, IsAcceptedAndSaysSo) {
  const auto driver = open_fake(FAKE_NO_VMM);
  ASSERT_NE(driver, nullptr);
  EXPECT_FALSE(driver->has_vmm());
  EXPECT_EQ(driver->cuMemCreate, nullptr);

  const auto properties = query_device(*driver, 0);
  ASSERT_TRUE(properties.ok()) << properties.status().text();
  EXPECT_FALSE(properties.value().vmm_supported);
  EXPECT_EQ(properties.value().granularity_bytes, 0U);
}

TEST(DriverWithoutVmm, RefusesPhysicalMemoryAndAddressesWithAnError) {
  const auto driver = open_fake(FAKE_NO_VMM);
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(PhysicalHandle::create(*driver, 0, 1 << 21).status().code(), SPW_ERROR_UNSUPPORTED);
  EXPECT_EQ(AddressRange::reserve(*driver, 1 << 21).status().code(), SPW_ERROR_UNSUPPORTED);
  EXPECT_EQ(export_file_descriptor(*driver, 0).status().code(), SPW_ERROR_UNSUPPORTED);
}

TEST(DriverCheck, TellsOutOfMemoryFromOtherErrors) {
  const auto driver = open_fake(FAKE_COMPLETE);
  ASSERT_NE(driver, nullptr);
  EXPECT_TRUE(driver->check(CUDA_SUCCESS, "cuMemCreate").ok());
  const Status memory = driver->check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate");
  EXPECT_EQ(memory.code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(memory.text(), "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  const Status device = driver->check(CUDA_ERROR_NO_DEVICE, "cuMemMap");
  EXPECT_EQ(device.code(), SPW_ERROR_DRIVER);
  EXPECT_EQ(device.text(), "cuMemMap: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)");
}

TEST(DriverCheck, SurvivesAnErrorThatTheDriverCannotName) {
  const auto driver = open_fake(FAKE_COMPLETE);
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(driver->check(static_cast<CUresult>(998), "cuMemMap").text(), "cuMemMap: unknown error 998");
}

TEST(DriverGone, OwnersLetGoWithoutComplaint) {
  const auto driver = open_fake(FAKE_COMPLETE);
  ASSERT_NE(driver, nullptr);
  const auto released = control<int()>(*driver, "fake_released");
  {
    auto handle = PhysicalHandle::create(*driver, 0, 1 << 21);
    ASSERT_TRUE(handle.ok()) << handle.status().text();
    control<void()>(*driver, "fake_go_away")();
  }
  EXPECT_EQ(released(), 1);
}

TEST(DeviceQuery, ReportsWhatTheDriverSaysAndWhatItDoesNotKnow) {
  const auto driver = open_fake(FAKE_NO_VMM);
  ASSERT_NE(driver, nullptr);
  const auto properties = query_device(*driver, 0);
  ASSERT_TRUE(properties.ok()) << properties.status().text();
  EXPECT_EQ(properties.value().name, "fake");
  EXPECT_EQ(properties.value().total_bytes, size_t{1} << 30);
  EXPECT_EQ(properties.value().rdma_vmm, 1);
  EXPECT_EQ(properties.value().host_vmm, DeviceProperties::kUnknown);
  EXPECT_EQ(uuid_text(properties.value().uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
}

TEST(DeviceQuery, SaysWhichDevicesThereAre) {
  const auto driver = open_fake(FAKE_COMPLETE);
  ASSERT_NE(driver, nullptr);
  for (const int ordinal : {-1, 1}) {
    const auto properties = query_device(*driver, ordinal);
    ASSERT_FALSE(properties.ok());
    EXPECT_EQ(properties.status().code(), SPW_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(properties.status().text(), HasSubstr("allowed: 0 to 0"));
  }
}

}  // namespace
}  // namespace spillway
