// PyTorch's allocator as a replay target.
#include "cli/replay/target.h"
#include "cli/torch_peer/torch_peer.h"

namespace spillway {
namespace {

class TorchTarget final : public ReplayTarget {
 public:
  explicit TorchTarget(const TorchPeer* peer) : peer_(peer) {}

  spw_status allocate(uint64_t bytes, CUstream_st* stream, void** out) override {
    return peer_->allocate(bytes, stream, out);
  }
  spw_status free(void* block) override { return peer_->free(block); }
  spw_status record_stream(void* block, CUstream_st* stream) override {
    return peer_->record_stream(block, stream);
  }
  uint64_t peak_reserved_bytes() override { return peer_->peak_reserved_bytes(0); }
  std::string last_error() override { return peer_->last_error(); }

 private:
  const TorchPeer* peer_;
};

}  // namespace

Result<std::unique_ptr<ReplayTarget>> make_torch_target(bool expandable_segments) {
  Result<const TorchPeer*> peer = load_torch_peer(expandable_segments, 1);
  if (!peer.ok()) {
    return Status(peer.status().code(), std::string("--allocator ") +
                                            (expandable_segments ? "expandable" : "native") + ": " +
                                            peer.status().text());
  }
  return std::unique_ptr<ReplayTarget>(std::make_unique<TorchTarget>(peer.value()));
}

}  // namespace spillway
