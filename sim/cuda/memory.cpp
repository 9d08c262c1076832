#include "sim/cuda/memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "sim/cuda/addresses.h"

namespace spillway::sim {
namespace {

constexpr uint64_t kHostCapacity = uint64_t{16} << 30;
constexpr size_t kFatesKept = 4096;

void* raw_mmap(uint64_t hint, uint64_t bytes, int protection, int flags, int file, uint64_t offset) {
  return std::bit_cast<void*>(syscall(SYS_mmap, hint, bytes, protection, flags, file, offset));
}
void raw_munmap(uint64_t start, uint64_t bytes) {
  syscall(SYS_munmap, start, bytes);
}

constexpr int kHoldFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

bool Memory::reset(const Config& config, SharedAccount account) {
  clear();
  account_ = std::move(account);
  capacity_bytes_ = config.capacity_bytes;
  backed_ = config.backed;
  overheads_ = config.overheads;
  granularity_bytes_ = config.granularity_bytes;
  visible_ = config.visible;
  for (int device = kHostDevice; device < kMaxDevices; ++device) {
    Backing& backing = backing_of(device);
    if (!backed_ || device >= config.devices) {
      backing.close_all();
    } else if (!backing.open(device == kHostDevice ? kHostCapacity : capacity_bytes_)) {
      return false;
    }
  }
  return true;
}

void Memory::clear() {
  for (auto& [id, physical] : physicals_) {
    if (physical->foreign && physical->data != nullptr) munmap(physical->data, physical->bytes);
  }
  for (const auto& [start, bytes] : reservations_) raw_munmap(start, bytes);
  physicals_.clear();
  reservations_.clear();
  mappings_.clear();
  tables_ = {};
  fates_.clear();
  account_.close();
  used_.fill(0);
  peak_.fill(0);
  live_mappings_ = peak_mappings_ = live_handles_ = 0;
}

void Memory::reset_peaks() {
  peak_ = used_;
  peak_mappings_ = live_mappings_;
}

Physical* Memory::create(Physical::Kind kind, int device, uint64_t bytes) {
  Physical* physical = create_empty(kind, device, bytes);
  if (commit(*physical)) return physical;
  release(physical);
  return nullptr;
}

Physical* Memory::create_empty(Physical::Kind kind, int device, uint64_t bytes) {
  auto physical = std::make_unique<Physical>();
  physical->kind = kind;
  physical->device = device;
  physical->bytes = bytes;
  physical->id = next_id_++;
  physical->references = 1;
  if (kind == Physical::Kind::kHandle) ++live_handles_;
  return (physicals_[physical->id] = std::move(physical)).get();
}

bool Memory::commit(Physical& physical) {
  const int device = physical.device;
  const uint64_t bytes = physical.bytes;
  if (device != kHostDevice && bytes > capacity_bytes_ - used_[static_cast<size_t>(device)]) return false;
  if (backed_ && physical.kind != Physical::Kind::kPinned) {
    Backing& backing = backing_of(device);
    physical.file_offset = backing.allocate(bytes);
    if (physical.file_offset == UINT64_MAX) return false;
    physical.data = backing.at(physical.file_offset);
  }
  if (device != kHostDevice &&
      !account_.change(machine_device(visible_, device), used_[static_cast<size_t>(device)] + bytes,
                       capacity_bytes_)) {
    if (physical.data != nullptr) backing_of(device).free(physical.file_offset, bytes);
    physical.data = nullptr;
    return false;
  }
  if (device != kHostDevice) {
    uint64_t& used = used_[static_cast<size_t>(device)];
    used += bytes;
    peak_[static_cast<size_t>(device)] = std::max(peak_[static_cast<size_t>(device)], used);
  }
  physical.committed = true;
  return true;
}

void Memory::decommit(Physical& physical) {
  if (!physical.committed) return;
  physical.committed = false;
  if (physical.data != nullptr) backing_of(physical.device).free(physical.file_offset, physical.bytes);
  physical.data = nullptr;
  if (physical.device == kHostDevice) return;
  uint64_t& used = used_[static_cast<size_t>(physical.device)];
  used -= physical.bytes;
  (void)account_.change(machine_device(visible_, physical.device), used, capacity_bytes_);
}

Physical* Memory::adopt(Physical::Kind kind, int device, uint64_t bytes, char* window) {
  auto physical = std::make_unique<Physical>();
  physical->kind = kind;
  physical->foreign = true;
  physical->device = device;
  physical->bytes = bytes;
  physical->id = next_id_++;
  physical->references = 1;
  physical->data = window;
  physical->committed = true;
  if (kind == Physical::Kind::kHandle) ++live_handles_;
  return (physicals_[physical->id] = std::move(physical)).get();
}

Physical* Memory::find_handle(uint64_t handle) {
  const auto found = physicals_.find(handle);
  if (found == physicals_.end()) return nullptr;
  Physical* physical = found->second.get();
  return physical->kind == Physical::Kind::kHandle && physical->references > 0 ? physical : nullptr;
}

void Memory::release(Physical* physical) {
  --physical->references;
  destroy_if_unused(physical);
}

void Memory::destroy_if_unused(Physical* physical) {
  if (physical->references != 0 || physical->mappings != 0) return;
  if (physical->foreign) {
    if (physical->data != nullptr) munmap(physical->data, physical->bytes);
  } else {
    decommit(*physical);
  }
  if (physical->kind == Physical::Kind::kHandle) --live_handles_;
  physicals_.erase(physical->id);
}

uint64_t Memory::reserve(uint64_t bytes, uint64_t alignment, uint64_t hint) {
  if (hint != 0 && hint % alignment == 0) {
    void* at = raw_mmap(hint, bytes, PROT_NONE, kHoldFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != MAP_FAILED && reinterpret_cast<uint64_t>(at) != hint) {
      raw_munmap(reinterpret_cast<uint64_t>(at), bytes);
      at = MAP_FAILED;
    }
    if (at != MAP_FAILED) {
      reservations_.emplace(hint, bytes);
      return hint;
    }
  }
  void* at = raw_mmap(0, bytes + alignment, PROT_NONE, kHoldFlags, -1, 0);
  if (at == MAP_FAILED) return 0;
  const auto base = reinterpret_cast<uint64_t>(at);
  const uint64_t start = (base + alignment - 1) / alignment * alignment;
  if (start > base) raw_munmap(base, start - base);
  if (start + bytes < base + bytes + alignment) raw_munmap(start + bytes, base + alignment - start);
  reservations_.emplace(start, bytes);
  return start;
}

bool Memory::unreserve(uint64_t start, uint64_t bytes) {
  const auto found = reservations_.find(start);
  if (found == reservations_.end() || found->second != bytes || any_mapped(start, bytes)) return false;
  raw_munmap(start, bytes);
  reservations_.erase(found);
  return true;
}

std::pair<uint64_t, uint64_t> Memory::reservation_of(uint64_t address) const {
  auto after = reservations_.upper_bound(address);
  if (after == reservations_.begin()) return {0, 0};
  const auto& [start, bytes] = *std::prev(after);
  return address - start < bytes ? std::pair{start, bytes} : std::pair<uint64_t, uint64_t>{0, 0};
}

bool Memory::inside_reservation(uint64_t start, uint64_t bytes) const {
  const auto [base, size] = reservation_of(start);
  return size != 0 && bytes <= size - (start - base);
}

Mapping* Memory::map(uint64_t start, uint64_t bytes, Physical* physical) {
  Mapping mapping;
  mapping.start = start;
  mapping.bytes = bytes;
  mapping.physical = physical;
  mapping.buffer_id = next_id_++;
  ++physical->mappings;
  if (physical->kind == Physical::Kind::kHandle) peak_mappings_ = std::max(peak_mappings_, ++live_mappings_);
  if (!fates_.empty()) {
    auto it = fates_.lower_bound(start);
    if (it != fates_.begin() && std::prev(it)->second.first > start) --it;
    while (it != fates_.end() && it->first < start + bytes) it = fates_.erase(it);
  }
  return &mappings_.emplace(start, mapping).first->second;
}

void Memory::unmap(Mapping* mapping) {
  note_fate(*mapping);
  if (mapping->host_access != 0) open_to_host(mapping, false, false);
  for (int device = 0; mapping->tables != 0 && device < kMaxDevices; ++device) drop_tables(*mapping, device);
  Physical* physical = mapping->physical;
  if (physical->kind == Physical::Kind::kHandle) --live_mappings_;
  --physical->mappings;
  mappings_.erase(mapping->start);
  destroy_if_unused(physical);
}

Mapping* Memory::find(uint64_t address) {
  auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return nullptr;
  Mapping& mapping = std::prev(after)->second;
  return address - mapping.start < mapping.bytes ? &mapping : nullptr;
}

bool Memory::any_mapped(uint64_t start, uint64_t bytes) {
  if (find(start) != nullptr) return true;
  const auto next = mappings_.lower_bound(start);
  return next != mappings_.end() && next->first < start + bytes;
}

std::vector<Mapping*> Memory::exactly(uint64_t start, uint64_t bytes) {
  std::vector<Mapping*> found;
  uint64_t at = start;
  for (auto it = mappings_.find(start); it != mappings_.end() && at < start + bytes; ++it) {
    if (it->first != at || it->second.physical->kind != Physical::Kind::kHandle) return {};
    found.push_back(&it->second);
    at += it->second.bytes;
  }
  return at == start + bytes ? found : std::vector<Mapping*>{};
}

std::vector<Mapping*> Memory::allocations_of(CUcontext context) {
  std::vector<Mapping*> found;
  for (auto& [start, mapping] : mappings_) {
    if (mapping.context == context && mapping.physical->kind == Physical::Kind::kAllocation)
      found.push_back(&mapping);
  }
  return found;
}

bool Memory::open_to_host(Mapping* mapping, bool readable, bool writable) {
  mapping->host_access = static_cast<uint8_t>((readable ? 1 : 0) | (writable ? 2 : 0));
  const int protection = (readable ? PROT_READ : 0) | (writable ? PROT_WRITE : 0);
  const Physical& physical = *mapping->physical;
  void* at = nullptr;
  if (protection == PROT_NONE) {
    at = raw_mmap(mapping->start, mapping->bytes, PROT_NONE, kHoldFlags | MAP_FIXED, -1, 0);
  } else if (physical.data == nullptr) {
    return true;  // accounts only
  } else {
    at = raw_mmap(mapping->start, mapping->bytes, protection, MAP_SHARED | MAP_FIXED,
                  backing_of(physical.device).file(), physical.file_offset);
  }
  return at != MAP_FAILED;
}

char* Memory::bytes_at(uint64_t address, uint64_t* contiguous) {
  Mapping* mapping = find(address);
  if (mapping == nullptr) return nullptr;
  *contiguous = mapping->end() - address;
  if (mapping->physical->kind == Physical::Kind::kPinned) return pointer_to(address);
  if (mapping->physical->data == nullptr) return nullptr;
  return mapping->physical->data + (address - mapping->start);
}

Piece Memory::piece_at(uint64_t address, uint64_t* contiguous) {
  char* bytes = bytes_at(address, contiguous);
  if (bytes == nullptr) return {};
  const Mapping& mapping = *find(address);
  const Physical& physical = *mapping.physical;
  if (physical.kind == Physical::Kind::kPinned) return {bytes, -1, 0};
  return {bytes, file_of(physical), physical.file_offset + (address - mapping.start)};
}

int Memory::file_of(const Physical& physical) const {
  return physical.data == nullptr || physical.foreign ? -1 : backings_[backing_index(physical.device)].file();
}

void Memory::note_fate(const Mapping& mapping) {
  if (fates_.size() >= kFatesKept) fates_.erase(fates_.begin());
  fates_[mapping.start] = {mapping.end(), mapping.physical->kind != Physical::Kind::kHandle};
}

const char* Memory::fate_of(uint64_t address) const {
  auto after = fates_.upper_bound(address);
  if (after == fates_.begin()) return "never mapped";
  const auto& [end, freed] = std::prev(after)->second;
  if (address >= end) return "never mapped";
  return freed ? "already freed" : "already unmapped";
}

}  // namespace spillway::sim
