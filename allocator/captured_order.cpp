#include "allocator/captured_order.h"

#include <algorithm>
#include <utility>

namespace spillway {

std::optional<CaptureTail> capture_tail(const Driver& driver, CUstream stream) {
  if (driver.cuStreamGetCaptureInfo == nullptr) return std::nullopt;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t capture = 0;
  const CUgraphNode* nodes = nullptr;
  size_t count = 0;
  const CUresult result = driver.cuStreamGetCaptureInfo(stream, &status, &capture, nullptr, &nodes, &count);
  if (result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return std::nullopt;
  return CaptureTail{capture, std::vector<CUgraphNode>(nodes, nodes + count)};
}

void CapturedOrder::look(const Driver& driver, CUstream stream) {
  const std::optional<CaptureTail> tail =
      driver.cuGraphNodeGetDependencies == nullptr ? std::nullopt : capture_tail(driver, stream);
  const uint64_t capture = tail.has_value() ? tail->capture : 0;
  if (std::exchange(capture_, capture) != capture) before_.clear();
  if (!tail.has_value()) return;
  waiting_ = tail->nodes;
  while (!waiting_.empty()) {
    const CUgraphNode node = waiting_.back();
    waiting_.pop_back();
    if (before_.insert(node).second) add(driver, node);
  }
}

// Where the driver does not name what comes before, nothing is known to.
void CapturedOrder::add(const Driver& driver, CUgraphNode node) {
  size_t count = 0;
  if (driver.cuGraphNodeGetDependencies(node, nullptr, &count) != CUDA_SUCCESS || count == 0) return;
  std::vector<CUgraphNode> earlier(count);
  if (driver.cuGraphNodeGetDependencies(node, earlier.data(), &count) != CUDA_SUCCESS) return;
  waiting_.insert(waiting_.end(), earlier.begin(), earlier.begin() + static_cast<ptrdiff_t>(count));
}

bool CapturedOrder::is_behind(const CaptureTail& earlier) const {
  return earlier.capture != 0 && earlier.capture == capture_ && !before_.empty() &&
         std::all_of(earlier.nodes.begin(), earlier.nodes.end(),
                     [&](CUgraphNode node) { return before_.count(node) > 0; });
}

}  // namespace spillway
