#include "abi/preload/created_memory.h"

#include "abi/preload/accounts.h"

namespace spillway {

CreatedMemory& CreatedMemory::instance() {
  static CreatedMemory& memory = *new CreatedMemory;  // hooks are called until the process ends
  return memory;
}

void CreatedMemory::created(uint64_t handle, int device, uint64_t bytes) noexcept {
  try {
    const Lock lock(mutex_);
    handles_[handle].references = 1;
    Accounts::instance().add(DriverMemory::kVmm, device, nullptr, handle, bytes);
  } catch (...) {
    // Host memory has run out: the account is wrong, the program is not.
  }
}

void CreatedMemory::retained(uint64_t handle) noexcept {
  const Lock lock(mutex_);
  if (const auto found = handles_.find(handle); found != handles_.end()) ++found->second.references;
}

void CreatedMemory::released(uint64_t handle) noexcept {
  const Lock lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end() || found->second.references == 0) return;
  --found->second.references;
  drop_unused(found);
}

void CreatedMemory::mapped(uint64_t address, uint64_t handle) noexcept {
  try {
    const Lock lock(mutex_);
    const auto found = handles_.find(handle);
    if (found == handles_.end()) return;
    if (mappings_.emplace(address, handle).second) ++found->second.mappings;
  } catch (...) {
    // Here too the account is wrong, the program is not.
  }
}

void CreatedMemory::unmapped(uint64_t address, uint64_t bytes) noexcept {
  const Lock lock(mutex_);
  const auto begin = mappings_.lower_bound(address);
  const auto end = mappings_.lower_bound(address + bytes);
  for (auto mapping = begin; mapping != end; ++mapping) {
    const auto found = handles_.find(mapping->second);
    --found->second.mappings;
    drop_unused(found);
  }
  mappings_.erase(begin, end);
}

void CreatedMemory::drop_unused(Handles::iterator handle) {
  if (handle->second.references != 0 || handle->second.mappings != 0) return;
  Accounts::instance().remove(DriverMemory::kVmm, handle->first);
  handles_.erase(handle);
}

}  // namespace spillway
