#include "abi/preload/accounts.h"

#include <set>

#include "abi/process.h"

namespace spillway {
namespace {

constexpr const char* kNames[] = {"preload_plain_bytes", "preload_managed_bytes", "preload_array_bytes",
                                  "preload_host_bytes",  "preload_vmm_bytes",     "preload_pool_bytes",
                                  "preload_graph_bytes"};
static_assert(sizeof kNames / sizeof kNames[0] == static_cast<size_t>(DriverMemory::kCount));

}  // namespace

Accounts& Accounts::instance() {
  static Accounts& accounts = *new Accounts;
  return accounts;
}

void Accounts::add(DriverMemory kind, int device, const void* context, uint64_t key,
                   uint64_t bytes) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    rows_[static_cast<size_t>(kind)][key] = {device, context, bytes};
    publish(kind, device);
  } catch (...) {
    // Host memory has run out: the account is wrong, the program is not.
  }
}

void Accounts::remove(DriverMemory kind, uint64_t key) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    auto& rows = rows_[static_cast<size_t>(kind)];
    const auto found = rows.find(key);
    if (found == rows.end()) return;
    const int device = found->second.device;
    rows.erase(found);
    publish(kind, device);
  } catch (...) {
    // As above.
  }
}

void Accounts::context_ended(const void* context) noexcept {
  if (context == nullptr) return;  // what belongs to none
  try {
    const std::lock_guard lock(mutex_);
    for (size_t kind = 0; kind < rows_.size(); ++kind) {
      std::set<int> devices;
      std::erase_if(rows_[kind], [&](const auto& entry) {
        const bool ends = entry.second.context == context;
        if (ends) devices.insert(entry.second.device);
        return ends;
      });
      for (const int device : devices) publish(static_cast<DriverMemory>(kind), device);
    }
  } catch (...) {
    // As above.
  }
}

void Accounts::publish(DriverMemory kind, int device) {
  uint64_t bytes = 0;
  for (const auto& [key, row] : rows_[static_cast<size_t>(kind)]) {
    if (row.device == device) bytes += row.bytes;
  }
  (void)Process::instance().annotate(device, kNames[static_cast<size_t>(kind)], bytes);
}

}  // namespace spillway
