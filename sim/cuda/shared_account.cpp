#include "sim/cuda/shared_account.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace spillway::sim {
namespace {

struct flock range(int type, off_t begin) {
  struct flock lock {};
  lock.l_type = static_cast<short>(type);
  lock.l_whence = SEEK_SET;
  lock.l_start = begin;
  lock.l_len = 1;
  return lock;
}

}  // namespace

// Locks out other processes. The byte behind those of the slots.
class SharedAccount::Exclusive {
 public:
  explicit Exclusive(int file) : file_(file) {
    struct flock lock = range(F_WRLCK, kSlots);
    while (fcntl(file_, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
    }
  }
  ~Exclusive() {
    struct flock lock = range(F_UNLCK, kSlots);
    fcntl(file_, F_OFD_SETLK, &lock);
  }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

 private:
  const int file_;
};

bool SharedAccount::open(const std::string& path) {
  close();
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file_ < 0) return false;
  if (ftruncate(file_, sizeof(Table)) == 0) {
    void* at = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (at != MAP_FAILED) table_ = static_cast<Table*>(at);
  }
  if (table_ != nullptr) {
    const Exclusive exclusive(file_);
    errno = EAGAIN;
    for (int slot = 0; slot < kSlots && own_ < 0; ++slot) {
      struct flock lock = range(F_WRLCK, slot);
      if (fcntl(file_, F_OFD_SETLK, &lock) == 0) own_ = slot;
    }
    if (own_ >= 0) table_->slots[static_cast<size_t>(own_)].fill(0);
  }
  if (own_ >= 0) return true;
  const int why = errno;
  close();
  errno = why;
  return false;
}

SharedAccount& SharedAccount::operator=(SharedAccount&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(own_, other.own_);
  std::swap(table_, other.table_);
  return *this;
}

void SharedAccount::close() {
  if (table_ != nullptr) munmap(table_, sizeof(Table));
  if (file_ >= 0) ::close(file_);  // gives up the slot
  table_ = nullptr;
  file_ = own_ = -1;
}

uint64_t SharedAccount::sum_of_others(int device) const {
  uint64_t bytes = 0;
  for (int slot = 0; slot < kSlots; ++slot) {
    if (slot == own_) continue;
    struct flock lock = range(F_WRLCK, slot);
    const bool alive = fcntl(file_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    if (alive) bytes += table_->slots[static_cast<size_t>(slot)][static_cast<size_t>(device)];
  }
  return bytes;
}

uint64_t SharedAccount::held_by_others(int device) const {
  if (table_ == nullptr) return 0;
  const Exclusive exclusive(file_);
  return sum_of_others(device);
}

bool SharedAccount::change(int device, uint64_t after, uint64_t capacity_bytes) {
  if (table_ == nullptr) return after <= capacity_bytes;
  const Exclusive exclusive(file_);
  uint64_t& own = table_->slots[static_cast<size_t>(own_)][static_cast<size_t>(device)];
  if (after > own) {
    const uint64_t others = sum_of_others(device);
    if (others > capacity_bytes || after > capacity_bytes - others) return false;
  }
  own = after;
  return true;
}

}  // namespace spillway::sim
