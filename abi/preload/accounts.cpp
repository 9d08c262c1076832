#include "abi/preload/accounts.h"

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
    const Lock lock(mutex_);
    const auto [entry, is_new] = rows_[static_cast<size_t>(kind)].try_emplace(key);
    if (!is_new) change(kind, entry->second, false);
    entry->second = {device, context, bytes};
    change(kind, entry->second, true);
  } catch (...) {
    // Host memory has run out: the account is wrong, the program is not.
  }
}

void Accounts::remove(DriverMemory kind, uint64_t key) noexcept {
  try {
    const Lock lock(mutex_);
    auto& rows = rows_[static_cast<size_t>(kind)];
    const auto found = rows.find(key);
    if (found == rows.end()) return;
    change(kind, found->second, false);
    rows.erase(found);
  } catch (...) {
    // Here too the account is wrong, the program is not.
  }
}

void Accounts::context_ended(const void* context) noexcept {
  if (context == nullptr) return;  // what belongs to none
  try {
    const Lock lock(mutex_);
    for (size_t kind = 0; kind < rows_.size(); ++kind) {
      std::erase_if(rows_[kind], [&](const auto& entry) SPW_REQUIRES(mutex_) {
        const bool ends = entry.second.context == context;
        if (ends) change(static_cast<DriverMemory>(kind), entry.second, false);
        return ends;
      });
    }
  } catch (...) {
    // Here too the account is wrong, the program is not.
  }
}

void Accounts::change(DriverMemory kind, const Row& row, bool is_added) {
  uint64_t& total = totals_[{kind, row.device}];
  total = is_added ? total + row.bytes : total - row.bytes;
  (void)Process::instance().annotate(row.device, kNames[static_cast<size_t>(kind)], total);
}

}  // namespace spillway
