#include "estimator/gpus.h"

#include <gtest/gtest.h>

namespace spillway::estimator {
namespace {

constexpr double kGiB = 1 << 30;

double gib(const char* name) {
  Result<GpuMemory> gpu = gpu_memory(name);
  EXPECT_TRUE(gpu.ok()) << gpu.status().text();
  return gpu.ok() ? gpu->bytes / kGiB : 0;
}

// CUDA said so on two devices, docs/hardware; the others as error messages have them.
TEST(Gpus, HaveWhatCudaGives) {
  EXPECT_EQ(gpu_memory("h100-80")->bytes, 85017493504.0);
  EXPECT_EQ(gpu_memory("h200")->bytes, 150109880320.0);
  EXPECT_LT(gib("a100-40"), 39.6);
  EXPECT_LT(gib("l40s"), 44.5);
  EXPECT_LT(gib("rtx4090"), 23.6);
}

TEST(Gpus, AreFoundByTheNamesThatPeopleWrite) {
  for (const auto& [written, name] : {std::pair{"h100", "h100-80"},
                                      {"H100", "h100-80"},
                                      {"NVIDIA H100 80GB HBM3", "h100-80"},
                                      {"NVIDIA A100-SXM4-40GB", "a100-40"},
                                      {"a100", "a100-80"},
                                      {"a100-80gb", "a100-80"},
                                      {"4090", "rtx4090"},
                                      {"RTX 4090", "rtx4090"},
                                      {"NVIDIA GeForce RTX 3090", "rtx3090"},
                                      {"a10g", "a10g"},
                                      {"Tesla T4", "t4"},
                                      {"b200", "b200"},
                                      {"NVIDIA H100 NVL", "h100-94"},
                                      {"h100nvl", "h100-94"},
                                      {"NVIDIA H200 NVL", "h200"},
                                      {"NVIDIA GH200 480GB", "gh200"},
                                      {"a100-80g", "a100-80"},
                                      {"gb200", "gb200"},
                                      {"NVIDIA GB200", "gb200"},
                                      {"NVIDIA RTX 6000 Ada Generation", "6000ada"},
                                      {"mi300x", "mi300x"},
                                      {"AMD Instinct MI300X", "mi300x"}}) {
    Result<GpuMemory> gpu = gpu_memory(written);
    ASSERT_TRUE(gpu.ok()) << gpu.status().text();
    EXPECT_EQ(gpu->name, name) << written;
  }
}

TEST(Gpus, ThatMeanSeveralAreSaid) {
  EXPECT_EQ(gpu_ambiguity("a100"), "--gpu a100: taken for a100-80; there is also a100-40");
  EXPECT_EQ(gpu_ambiguity("a100-40"), "");
  EXPECT_EQ(gpu_ambiguity("l4"), "");
  EXPECT_EQ(gpu_ambiguity("24GiB"), "");
}

TEST(Gpus, OfASizeHaveIt) {
  EXPECT_EQ(gib("24GiB"), 24);
  EXPECT_EQ(gpu_memory("24GB")->bytes, 24e9);
  EXPECT_EQ(gpu_memory("80g")->bytes, 80 * 1024.0 * 1024 * 1024);
  EXPECT_EQ(gpu_memory("80 gib")->bytes, 80 * 1024.0 * 1024 * 1024);
  EXPECT_EQ(gpu_memory("1.5tb")->bytes, 1.5e12);
  EXPECT_FALSE(gpu_memory("80").ok());
  EXPECT_EQ(gpu_memory("24 GB")->bytes, 24e9);
  EXPECT_EQ(gib("512MiB"), 0.5);
  EXPECT_EQ(gpu_memory("85017493504B")->bytes, 85017493504.0) << "as the command passes one on";
}

TEST(Gpus, ThatAreNoneAreRefused) {
  for (const char* bad :
       {"banana", "", "-4GiB", "0GiB", "24", "24 furlongs", "nanGiB", "1e300GiB", "99999TiB", "gb", "-"})
    EXPECT_FALSE(gpu_memory(bad).ok()) << bad;
  EXPECT_NE(gpu_memory("rtx4091").status().text().find("did you mean 'rtx4090'?"), std::string::npos);
  EXPECT_NE(gpu_memory("24").status().text().find("did you mean '24GiB'?"), std::string::npos);
  for (const char* other : {"a800", "rtx8000", "p100", "0"}) {
    const std::string refused = gpu_memory(other).status().text();
    EXPECT_EQ(refused.find("did you mean"), std::string::npos) << refused;
  }
}

}  // namespace
}  // namespace spillway::estimator
