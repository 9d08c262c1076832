// Access from other devices. Every mapping names the devices that may use it (cuMemSetAccess), so a peer is
// given access to what is mapped now, and its name is kept for what will be. Memory of cuMemAlloc belongs to
// a context instead, and access is the peer context's (cuCtxEnablePeerAccess).

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "allocator/arena.h"
#include "driver/capture.h"

namespace spillway {

namespace {

// `page`: the first of the unit that the view shows from the slot on.
bool is_mapped_in(const View& view, const Page& page, size_t slot) {
  const Alias* alias = page.aliases;
  while (alias != nullptr && (alias->view != &view || alias->slot != slot)) alias = alias->next;
  return alias != nullptr && alias->is_mapped;
}

}  // namespace

template <typename Visit>
Status PageStore::for_each_mapped_range(Visit visit) const {
  for (PageId first = backed_.next_set(0); first < backed_.end();) {
    PageId last = first;
    while (last < backed_.end() && backed_.test(last) && pages_[last].is_home) ++last;
    if (last > first) {
      Status status = visit(home_.base() + first * kPageBytes, (last - first) * kPageBytes);
      if (!status.ok()) return status;
    }
    first = backed_.next_set(last + 1);
  }
  for (const std::unique_ptr<View>& view : views_) {
    const std::vector<PageId>& pages = view->pages;
    const auto is_mapped = [&](size_t slot) {
      if (pages[slot] == kNoPage) return false;
      const PageId first = unit_of(pages[slot]).first;
      return is_mapped_in(*view, pages_[first], slot - (pages[slot] - first));
    };
    for (size_t first = 0; first < pages.size();) {
      size_t last = first;
      while (last < pages.size() && is_mapped(last)) ++last;
      if (last > first) {
        Status status = visit(view->va + first * kPageBytes, (last - first) * kPageBytes);
        if (!status.ok()) return status;
      }
      first = last + 1;
    }
  }
  return {};
}

Status PageStore::grant_peer(int peer) {
  devices_.reserve(devices_.size() + 1);
  std::vector<std::pair<uint64_t, uint64_t>> granted;
  Status status = for_each_mapped_range([&](uint64_t va, uint64_t bytes) -> Status {
    granted.emplace_back(va, bytes);
    count(DriverCall::kSetAccess);
    if (Status one = set_access(*driver_, va, bytes, peer); !one.ok()) return one;
    return {};
  });
  if (status.ok()) {
    devices_.push_back(peer);
    return status;
  }
  // The range that failed may be granted in part: it is taken back too.
  uint64_t kept_bytes = 0;
  for (const auto& [va, bytes] : granted) {
    count(DriverCall::kSetAccess);
    if (!deny_access(*driver_, va, bytes, peer).ok()) kept_bytes += bytes;
  }
  if (kept_bytes == 0) return status;
  return Status(status.code(), fmt::format("{}; device {} kept access to {} bytes, which is harmless",
                                           status.text(), peer, kept_bytes));
}

std::vector<int> Arena::devices() const {
  const ArenaLock lock(parts_.mutex);
  return parts_.store->devices();
}

Status Arena::enable_peer(int peer) {
  if (peer == parts_.device) {
    return Status::invalid_argument(fmt::format("device {} is no peer of itself", peer));
  }
  if (Status status = check_peer(*parts_.driver, peer, parts_.device); !status.ok()) return status;
  const RelaxedCapture relaxed(*parts_.driver);
  if (parts_.store->uses_vmm()) {
    const ScopedContext context(*parts_.driver, parts_.context.get());
    if (!context.status().ok()) return context.status();
    const ArenaLock lock(parts_.mutex);
    if (parts_.store->is_granted(peer)) return {};
    if (Status status = parts_.shared.grant_peer(peer); !status.ok()) return status;
    Status status = parts_.store->grant_peer(peer);
    if (!status.ok()) parts_.shared.deny_peer(peer);
    return status;
  }
  if (parts_.driver->cuCtxEnablePeerAccess == nullptr) {
    return Status::unsupported("cuCtxEnablePeerAccess: this driver does not have it");
  }
  Result<RetainedContext> user = RetainedContext::retain(parts_.driver, peer);
  if (!user.ok()) return user.take_status();
  const ScopedContext context(*parts_.driver, user->get());
  if (!context.status().ok()) return context.status();
  const CUresult answer = parts_.driver->cuCtxEnablePeerAccess(parts_.context.get(), 0);
  return answer == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
             ? Status()
             : parts_.driver->check(answer, "cuCtxEnablePeerAccess");
}

}  // namespace spillway
