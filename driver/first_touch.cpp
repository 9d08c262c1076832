#include "driver/first_touch.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <thread>
#include <vector>

namespace spillway {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kUnitBytes = size_t{2} << 20;          // a huge page is one thread's
constexpr size_t kLeastThreadBytes = size_t{16} << 20;  // for less no thread is started
constexpr int kPreferred = 1;                           // MPOL_PREFERRED: linux/mempolicy.h
constexpr int kPopulateWrite = 23;                      // MADV_POPULATE_WRITE: Linux 5.14

void prefer(char* base, size_t bytes, int node) {
  constexpr int kNodes = 1024;  // the most that a kernel is built for
  if (node < 0 || node >= kNodes) return;
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long nodes[kNodes / kBits + 1] = {};
  nodes[node / kBits] = 1UL << (node % kBits);
  (void)::syscall(SYS_mbind, base, bytes, kPreferred, nodes, kNodes, 0);
}

void touch(char* base, size_t bytes) {
  if (::madvise(base, bytes, kPopulateWrite) == 0) return;
  for (size_t at = 0; at < bytes; at += kPageBytes) {
    volatile char* const page = base + at;
    *page = *page;
  }
}

}  // namespace

int nearest_host_node(const Driver& driver) {
  CUdevice device = 0;
  int node = kAnyNode;
  if (driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) return kAnyNode;
  const CUresult answer = driver.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device);
  return answer == CUDA_SUCCESS ? node : kAnyNode;
}

bool has_processors(int node, const std::string& nodes) {
  std::ifstream file(nodes + "/node" + std::to_string(node) + "/cpulist");
  std::string first;
  return !file || static_cast<bool>(file >> first);
}

void touch_first(char* base, size_t bytes, unsigned threads, int node) noexcept {
  prefer(base, bytes, node);
  const size_t parts = std::clamp<size_t>(bytes / kLeastThreadBytes, 1, std::max(threads, 1u));
  const size_t part_bytes = (bytes / parts + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  std::vector<std::thread> others;
  size_t at = 0;
  try {
    others.reserve(parts - 1);
    for (; others.size() + 1 < parts && at + part_bytes < bytes; at += part_bytes) {
      others.emplace_back([begin = base + at, part_bytes] { touch(begin, part_bytes); });
    }
  } catch (const std::exception&) {
    // What no thread could be started for is left to this one.
  }
  touch(base + at, bytes - at);
  for (std::thread& other : others) other.join();
}

}  // namespace spillway
