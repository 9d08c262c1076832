// Counts what page tables take of a device's memory, where the configuration asks for it.
#include "sim/cuda/memory.h"

namespace spillway::sim {
namespace {

// From Pascal on, 16 bytes stand for 2 MiB, and 256 of them are a table (NVIDIA/open-gpu-kernel-modules,
// kernel-open/nvidia-uvm/uvm_pascal_mmu.c: entry_size_pascal, index_bits_pascal).
constexpr uint64_t kTableBytes = 256 * 16;
constexpr uint64_t kWindowBytes = uint64_t{256} * (2 << 20);

uint64_t first_window(const Mapping& mapping) {
  return mapping.start / kWindowBytes;
}
uint64_t last_window(const Mapping& mapping) {
  return (mapping.end() - 1) / kWindowBytes;
}

}  // namespace

bool Memory::make_tables(Mapping& mapping, int device) {
  const auto bit = static_cast<uint16_t>(1u << static_cast<unsigned>(device));
  if (!overheads_ || (mapping.tables & bit) != 0) return true;
  PageTables& tables = tables_[static_cast<size_t>(device)];
  for (uint64_t window = first_window(mapping); window <= last_window(mapping); ++window) {
    ++tables.windows[window];
  }
  mapping.tables |= bit;
  while (tables.granules.size() * granularity_bytes_ < tables.windows.size() * kTableBytes) {
    Physical* granule = create(Physical::Kind::kAllocation, device, granularity_bytes_);
    if (granule == nullptr) {
      drop_tables(mapping, device);
      mapping.tables = static_cast<uint16_t>(mapping.tables & ~bit);
      return false;
    }
    tables.granules.push_back(granule);
  }
  return true;
}

void Memory::drop_tables(const Mapping& mapping, int device) {
  if ((mapping.tables >> static_cast<unsigned>(device) & 1) == 0) return;
  PageTables& tables = tables_[static_cast<size_t>(device)];
  for (uint64_t window = first_window(mapping); window <= last_window(mapping); ++window) {
    const auto found = tables.windows.find(window);
    if (--found->second == 0) tables.windows.erase(found);
  }
  const uint64_t needed = tables.windows.size() * kTableBytes;
  while (!tables.granules.empty() && (tables.granules.size() - 1) * granularity_bytes_ >= needed) {
    release(tables.granules.back());
    tables.granules.pop_back();
  }
}

}  // namespace spillway::sim
