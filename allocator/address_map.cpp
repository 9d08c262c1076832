#include "allocator/address_map.h"

#include <sys/mman.h>

namespace spillway {

AddressMap& AddressMap::instance() {
  // Static storage, zero at load: nothing runs at start or exit, and untouched parts take no memory.
  static constinit AddressMap map;
  return map;
}

AddressMap::Leaf* AddressMap::add_leaf(uint64_t top) {
  void* memory =
      mmap(nullptr, sizeof(Leaf), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* leaf = static_cast<Leaf*>(memory);
  Leaf* expected = nullptr;
  if (!leaves_[top].compare_exchange_strong(expected, leaf, std::memory_order_acq_rel)) {
    munmap(memory, sizeof(Leaf));
    return expected;
  }
  return leaf;
}

}  // namespace spillway
