#include <fmt/format.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <vector>

#include "offload/io/queue.h"

namespace spillway {
namespace {

constexpr int kMostTries = 1000;
constexpr timespec kPause{0, 1'000'000};  // between two of them
constexpr uint64_t kWakeToken = ~uint64_t{0};
constexpr uint32_t kMostRegions = 1024;
constexpr uint32_t kMostFiles = 4;
constexpr size_t kMostRegionBytes = size_t{1}
                                    << 30;  // of one registered buffer: io_uring_register_buffers(3)

// The cheapest way of reaping first; older kernels refuse it with EINVAL (6.1, 5.19).
constexpr std::array<uint32_t, 3> kSetups = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN,
    IORING_SETUP_COOP_TASKRUN, 0};

struct Region {
  std::byte* begin;
  std::byte* end;
  uint16_t index;
};

class UringQueue final : public IoQueue {
 public:
  explicit UringQueue(uint32_t depth) : depth_(depth) {}
  ~UringQueue() override {
    if (is_open_) io_uring_queue_exit(&ring_);
    if (event_ >= 0) close(event_);
  }
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;

  Status open();

  void push(const IoOperation& operation) override;
  size_t wait(std::span<IoCompletion> out) override;
  void wake() override;
  void use_memory(std::span<std::byte> memory) override;
  bool forget_memory(std::span<std::byte> memory) override;
  void use_file(int file) override;
  uint32_t depth() const override { return depth_; }
  std::string description() const override;

 private:
  Status open_ring();
  Status check_operations();
  io_uring_sqe* next_entry();
  void listen_for_wake();
  size_t fail_pushed(std::span<IoCompletion> out);
  void register_region(std::byte* begin, std::byte* end);
  int update_table(uint16_t index, const iovec& range);
  const Region* region_of(const IoOperation& operation) const;

  uint32_t depth_;
  io_uring ring_{};
  bool is_open_ = false;
  int event_ = -1;
  uint64_t event_value_ = 0;
  bool has_region_table_ = false;
  bool has_file_table_ = false;
  std::vector<int> files_;  // by their places in the table
  std::string plain_memory_reason_;
  std::vector<Region> regions_;         // by address
  std::vector<uint16_t> free_indexes_;  // of the table, below the number of those ever used
};

Status refused(const char* call, int error) {
  return Status::unsupported(fmt::format("io_uring: {}: {}", call, std::strerror(-error)));
}

Status UringQueue::open() {
  if (Status status = open_ring(); !status.ok()) return status;
  if (Status status = check_operations(); !status.ok()) return status;
  event_ = eventfd(0, EFD_CLOEXEC);
  if (event_ < 0) return refused("eventfd", -errno);
  const int error = io_uring_register_buffers_sparse(&ring_, kMostRegions);
  has_region_table_ = error == 0;
  if (error != 0) plain_memory_reason_ = std::strerror(-error);
  has_file_table_ = io_uring_register_files_sparse(&ring_, kMostFiles) == 0;
  listen_for_wake();
  return {};
}

Status UringQueue::open_ring() {
  int error = 0;
  for (const uint32_t flags : kSetups) {
    io_uring_params parameters{};
    parameters.flags = flags;
    error = io_uring_queue_init_params(depth_ + 1, &ring_, &parameters);
    if (error != -EINVAL) break;
  }
  if (error != 0) return refused("io_uring_queue_init_params", error);
  is_open_ = true;
  return {};
}

Status UringQueue::check_operations() {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  if (probe == nullptr) return refused("io_uring_get_probe_ring", -ENOSYS);
  bool has_all = true;
  for (const int code :
       {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_FSYNC}) {
    has_all = has_all && io_uring_opcode_supported(probe, code) != 0;
  }
  io_uring_free_probe(probe);
  return has_all ? Status() : refused("read, write and fsync", -EOPNOTSUPP);
}

// There is always one: an entry for each operation in flight and one for the wake.
io_uring_sqe* UringQueue::next_entry() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  while (entry == nullptr) {
    io_uring_submit(&ring_);
    entry = io_uring_get_sqe(&ring_);
  }
  return entry;
}

void UringQueue::listen_for_wake() {
  io_uring_sqe* entry = next_entry();
  io_uring_prep_read(entry, event_, &event_value_, sizeof event_value_, 0);
  io_uring_sqe_set_data64(entry, kWakeToken);
}

void UringQueue::push(const IoOperation& operation) {
  io_uring_sqe* entry = next_entry();
  const auto bytes = static_cast<unsigned>(operation.bytes);
  const Region* region = region_of(operation);
  if (operation.kind == IoKind::kSync) {
    io_uring_prep_fsync(entry, operation.file, IORING_FSYNC_DATASYNC);
  } else if (operation.kind == IoKind::kRead) {
    if (region != nullptr) {
      io_uring_prep_read_fixed(entry, operation.file, operation.memory, bytes, operation.offset,
                               region->index);
    } else {
      io_uring_prep_read(entry, operation.file, operation.memory, bytes, operation.offset);
    }
  } else if (region != nullptr) {
    io_uring_prep_write_fixed(entry, operation.file, operation.memory, bytes, operation.offset,
                              region->index);
  } else {
    io_uring_prep_write(entry, operation.file, operation.memory, bytes, operation.offset);
  }
  if (const auto known = std::find(files_.begin(), files_.end(), operation.file); known != files_.end()) {
    entry->fd = static_cast<int>(known - files_.begin());
    io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  }
  io_uring_sqe_set_data64(entry, operation.token);
}

// Takes back what the kernel has not begun. Not with the kernel's own error, EAGAIN, which would be tried a
// thousand times; and not with one that a disk may have.
size_t UringQueue::fail_pushed(std::span<IoCompletion> out) {
  io_uring_sq& queue = ring_.sq;
  const unsigned begin = io_uring_smp_load_acquire(queue.khead);
  size_t found = 0;
  bool has_wake = false;
  for (unsigned i = begin; i != queue.sqe_tail; ++i) {
    const uint64_t token = queue.sqes[i & *queue.kring_mask].user_data;
    if (token == kWakeToken) {
      has_wake = true;
    } else {
      out[found++] = {static_cast<uint32_t>(token), -EBUSY};
    }
  }
  queue.sqe_head = queue.sqe_tail = begin;
  io_uring_smp_store_release(queue.ktail, begin);
  if (has_wake) listen_for_wake();
  return found;
}

size_t UringQueue::wait(std::span<IoCompletion> out) {
  // What interrupts or hinders it now (EINTR, EAGAIN, EBUSY) need not do so later.
  for (int tries = 1; io_uring_submit_and_wait(&ring_, 1) < 0 && io_uring_cq_ready(&ring_) == 0; ++tries) {
    if (tries == kMostTries) return fail_pushed(out);
    nanosleep(&kPause, nullptr);
  }
  size_t found = 0;
  unsigned seen = 0;
  unsigned head = 0;
  io_uring_cqe* completion = nullptr;
  bool was_woken = false;
  io_uring_for_each_cqe(&ring_, head, completion) {
    if (io_uring_cqe_get_data64(completion) == kWakeToken) {
      was_woken = true;
    } else if (found < out.size()) {
      out[found++] = {static_cast<uint32_t>(io_uring_cqe_get_data64(completion)), completion->res};
    } else {
      break;
    }
    ++seen;
  }
  io_uring_cq_advance(&ring_, seen);
  if (was_woken) listen_for_wake();
  return found;
}

void UringQueue::wake() {
  const uint64_t one = 1;
  while (write(event_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void UringQueue::use_memory(std::span<std::byte> memory) {
  std::byte* const end = memory.data() + memory.size();
  for (std::byte* begin = memory.data(); begin < end; begin += kMostRegionBytes) {
    register_region(begin, std::min(end, begin + kMostRegionBytes));
  }
}

bool UringQueue::forget_memory(std::span<std::byte> memory) {
  std::byte* const end = memory.data() + memory.size();
  for (auto region = regions_.begin(); region != regions_.end();) {
    if (region->end <= memory.data() || region->begin >= end) {
      ++region;
      continue;
    }
    // Where the host has no memory for that, nothing has changed yet.
    free_indexes_.reserve(free_indexes_.size() + 1);
    if (update_table(region->index, {}) < 0) return false;
    free_indexes_.push_back(region->index);
    region = regions_.erase(region);
  }
  return true;
}

// Without registration the kernel looks the descriptor up for each operation.
void UringQueue::use_file(int file) {
  if (!has_file_table_ || files_.size() == kMostFiles) return;
  const int done = io_uring_register_files_update(&ring_, static_cast<unsigned>(files_.size()), &file, 1);
  if (done == 1) files_.push_back(file);
}

// Without registration the kernel pins the pages of each operation anew: slower, and right all the same.
void UringQueue::register_region(std::byte* begin, std::byte* end) {
  if (!has_region_table_ || regions_.size() == kMostRegions) return;
  regions_.reserve(regions_.size() + 1);  // what is in the table must be known here
  const auto index = free_indexes_.empty() ? static_cast<uint16_t>(regions_.size()) : free_indexes_.back();
  if (const int done = update_table(index, {begin, static_cast<size_t>(end - begin)}); done < 0) {
    plain_memory_reason_ = std::strerror(-done);
    return;
  }
  if (!free_indexes_.empty()) free_indexes_.pop_back();
  const Region region{begin, end, index};
  const auto place = std::upper_bound(regions_.begin(), regions_.end(), region,
                                      [](const Region& a, const Region& b) { return a.begin < b.begin; });
  regions_.insert(place, region);
}

// An empty range takes what is registered there out. Answers as the kernel does, below 0 an error.
int UringQueue::update_table(uint16_t index, const iovec& range) {
  return io_uring_register_buffers_update_tag(&ring_, index, &range, nullptr, 1);
}

const Region* UringQueue::region_of(const IoOperation& operation) const {
  auto after =
      std::upper_bound(regions_.begin(), regions_.end(), operation.memory,
                       [](std::byte* memory, const Region& region) { return memory < region.begin; });
  if (after == regions_.begin()) return nullptr;
  const Region& region = *--after;
  return operation.memory + operation.bytes <= region.end ? &region : nullptr;
}

std::string UringQueue::description() const {
  return plain_memory_reason_.empty()
             ? "io_uring"
             : fmt::format("io_uring, memory not registered: {}", plain_memory_reason_);
}

}  // namespace

Result<std::unique_ptr<IoQueue>> make_uring_queue(uint32_t depth) {
  auto queue = std::make_unique<UringQueue>(depth);
  if (Status status = queue->open(); !status.ok()) return status;
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace spillway
