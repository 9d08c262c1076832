#include "offload/io/faulty_queue.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

namespace spillway {
namespace {

class FaultyQueue final : public IoQueue {
 public:
  FaultyQueue(std::unique_ptr<IoQueue> queue, ChooseFault choose)
      : queue_(std::move(queue)), choose_(std::move(choose)) {}

  void push(const IoOperation& operation) override {
    const IoFault fault = choose_(operation, index_++);
    if (fault.result) {
      failed_.push_back({operation.token, *fault.result});
      return;
    }
    if (fault.flipped_byte) flipped_[operation.token] = operation.memory + *fault.flipped_byte;
    IoOperation changed = operation;
    changed.bytes = std::min(operation.bytes, fault.most_bytes);
    queue_->push(changed);
  }

  size_t wait(std::span<IoCompletion> out) override {
    const size_t failed = std::min(failed_.size(), out.size());
    std::copy_n(failed_.begin(), failed, out.begin());
    failed_.erase(failed_.begin(), failed_.begin() + static_cast<ptrdiff_t>(failed));
    if (failed > 0) queue_->wake();
    const size_t done = queue_->wait(out.subspan(failed));
    for (const IoCompletion& completion : out.subspan(failed, done)) flip(completion.token);
    return failed + done;
  }

  void wake() override { queue_->wake(); }
  void use_memory(std::span<std::byte> memory) override { queue_->use_memory(memory); }
  bool forget_memory(std::span<std::byte> memory) override { return queue_->forget_memory(memory); }
  void use_file(int file) override { queue_->use_file(file); }
  uint32_t depth() const override { return queue_->depth(); }
  std::string description() const override { return queue_->description() + ", with faults"; }

 private:
  void flip(uint32_t token) {
    const auto found = flipped_.find(token);
    if (found == flipped_.end()) return;
    *found->second ^= std::byte{0x40};
    flipped_.erase(found);
  }

  std::unique_ptr<IoQueue> queue_;
  ChooseFault choose_;
  uint64_t index_ = 0;
  std::vector<IoCompletion> failed_;
  std::unordered_map<uint32_t, std::byte*> flipped_;
};

}  // namespace

std::unique_ptr<IoQueue> make_faulty_queue(std::unique_ptr<IoQueue> queue, ChooseFault choose) {
  return std::make_unique<FaultyQueue>(std::move(queue), std::move(choose));
}

}  // namespace spillway
