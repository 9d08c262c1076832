// The arena's part in blocks that leave the process: limits, contexts, locks, and what is unsupported where.

#include <fmt/format.h>

#include "allocator/address_map.h"
#include "allocator/arena.h"
#include "allocator/listing.h"
#include "driver/capture.h"

namespace spillway {

Status Arena::check_shareable() const {
  const auto refuse = [&](const char* why) {
    return Status::unsupported(fmt::format("device {} ({}): {}", parts_.device, parts_.properties.name, why));
  };
  if (parts_.properties.is_mig) return refuse("a MIG instance shares no memory with other processes");
  if (!parts_.store->uses_vmm())
    return refuse("sharing memory needs virtual memory management (backend:vmm)");
  if (parts_.properties.posix_handles == 0)
    return refuse("its memory cannot be exported as a file descriptor");
  return {};
}

Status Arena::allocate_shareable(size_t bytes, CUstream stream, void** out) {
  *out = nullptr;
  if (Status status = check_shareable(); !status.ok()) return status;
  if (bytes == 0) return {};
  Result<StreamIdentity> identity = heaps_.identify_named(stream);
  if (!identity.ok()) return identity.take_status();
  if (Status status = check_context(*parts_.driver, stream, parts_.context.get(), parts_.device);
      !status.ok())
    return status;
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  if (spillway::is_capturing(*parts_.driver, identity->stream)) {
    return Status::invalid_state("a shareable block cannot be made on a stream that is being captured");
  }
  if (bytes > kLargestRequestBytes) return out_of_memory(bytes);
  for (bool trimmed = false;; trimmed = true) {
    {
      const RelaxedCapture relaxed(*parts_.driver);
      const ArenaLock lock(parts_.mutex);
      Result<uint64_t> va = parts_.shared.reuse(bytes, identity.value());
      if (va.ok() && va.value() == 0) {
        const uint64_t pages = SharedBlocks::extent_bytes(bytes) / kPageBytes;
        va = parts_.store->room_pages() < pages
                 ? Result<uint64_t>(Status::out_of_memory("the limit"))
                 : parts_.shared.create(bytes, identity.value(), parts_.store->devices(),
                                        parts_.properties.rdma_vmm == 1);
        parts_.update_most_pages();
      }
      if (va.ok()) {
        *out = reinterpret_cast<void*>(va.value());
        return {};
      }
      if (va.status().code() != SPW_ERROR_OUT_OF_MEMORY) return va.take_status();
    }
    if (trimmed || !trim().ok()) return out_of_memory(bytes);
    parts_.counters.on_alloc_retry();
  }
}

Status Arena::free_shared(uint64_t va) {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  const RelaxedCapture relaxed(*parts_.driver);
  const ArenaLock lock(parts_.mutex);
  Status status = parts_.shared.free(va);
  if (status.ok()) parts_.shared.complete_finished_frees();
  parts_.update_most_pages();
  return status;
}

Status Arena::record_stream_shared(uint64_t va, CUstream stream) {
  Result<StreamIdentity> identity = heaps_.identify_named(stream);
  if (!identity.ok()) return identity.take_status();
  if (Status status = check_context(*parts_.driver, stream, parts_.context.get(), parts_.device);
      !status.ok())
    return status;
  const ArenaLock lock(parts_.mutex);
  return parts_.shared.record_stream(va, identity.value());
}

Result<Exported> Arena::export_block(const void* pointer) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  if (Arena* arena = SharedBlocks::arena_of(va); arena != nullptr) {
    const ArenaLock lock(arena->parts_.mutex);
    return arena->parts_.shared.export_block(va);
  }
  if (AddressMap::instance().find(va) != nullptr) {
    return Status::invalid_pointer(
        fmt::format("export of {:#x}: its memory is shared with other blocks of this process; ask for a "
                    "block to be exported "
                    "with spw_alloc_shareable",
                    va));
  }
  return Status::invalid_pointer(fmt::format("export of {:#x}: no live block is there", va));
}

Status Arena::import_block(int descriptor, uint64_t bytes, void** out) {
  *out = nullptr;
  if (Status status = check_shareable(); !status.ok()) return status;
  if (descriptor < 0 || bytes == 0 || bytes % kPageBytes != 0) {
    return Status::invalid_argument(
        fmt::format("descriptor {}, {} bytes: both must be as spw_export_fd gave them", descriptor, bytes));
  }
  Result<MappedRange> range = begin_import(bytes);
  if (!range.ok()) return range.take_status();
  if (Status status = import_piece(range.value(), descriptor, bytes); !status.ok()) return status;
  return finish_import(std::move(range.value()), out);
}

// ---- Ordinary blocks, page by page

Status Arena::list_units_of(const void* pointer, PageSpan* span, std::vector<PageRun>& units) {
  if (!parts_.store->uses_vmm() || !parts_.store->is_exportable()) {
    if (Status status = check_shareable(); !status.ok()) return status;
    return Status::unsupported(fmt::format(
        "device {}: its memory was not made to be shown to other processes (option ipc:on)", parts_.device));
  }
  const auto va = reinterpret_cast<uint64_t>(pointer);
  CachedRange* range = AddressMap::instance().find(va);
  if (range == nullptr) {
    return Status::invalid_pointer(
        fmt::format("{:#x}: no block begins there that can be shown page by page to another process", va));
  }
  Heap& heap = *range->heap;
  const Lock lock(heap.mutex);
  if (heap.is_sourced() || heap.use.may_move) {
    return Status::unsupported(fmt::format(
        "{:#x}: it is of a region, which may move, or of a pool whose memory is another allocator's", va));
  }
  const Result<BlockRow> block = spillway::find_block(heap, *range, va);
  if (!block.ok() || block.value().kind != BlockKind::kActiveAllocated) {
    return Status::invalid_pointer(fmt::format("{:#x}: no block begins there, or it was freed", va));
  }
  const std::vector<PageId> pages = spillway::pages_of(*range);
  *span = {va % kPageBytes, 0, 0};
  // FNV-1a over the serial numbers of the first pages.
  span->identity = 0xcbf29ce484222325;
  for (const PageId page : pages) {
    const PageRun unit = parts_.store->unit_of(page);
    if (!units.empty() && units.back().first == unit.first) continue;
    if (units.empty()) span->offset += (page - unit.first) * kPageBytes;
    units.push_back(unit);
    span->count += unit.count;
    span->identity = (span->identity ^ parts_.store->page(unit.first).serial) * 0x100000001b3;
  }
  return {};
}

Result<PageSpan> Arena::pages_around(const void* pointer) {
  PageSpan span;
  std::vector<PageRun> units;
  const ArenaLock lock(parts_.mutex);
  if (Status status = list_units_of(pointer, &span, units); !status.ok()) return status;
  return span;
}

Status Arena::export_pages(const void* pointer, uint64_t identity, uint32_t first, uint32_t most,
                           std::vector<PagePiece>& pieces) {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  PageSpan span;
  std::vector<PageRun> units;
  // Held to the end: it keeps the pages from being released.
  const ArenaLock lock(parts_.mutex);
  if (Status status = list_units_of(pointer, &span, units); !status.ok()) return status;
  if (span.identity != identity || first > span.count) {
    return Status::invalid_state(
        fmt::format("{:#x}: the block that was shown was freed, and another is there",
                    reinterpret_cast<uint64_t>(pointer)));
  }
  uint32_t at = 0;  // the number of a unit's first page
  for (const PageRun& unit : units) {
    const uint32_t number = at;
    at += unit.count;
    if (number < first || pieces.size() >= most) continue;
    Result<int> descriptor = export_file_descriptor(*parts_.driver, parts_.store->page(unit.first).handle);
    if (!descriptor.ok()) return descriptor.take_status();
    pieces.push_back({descriptor.value(), unit.count});
  }
  return {};
}

Result<MappedRange> Arena::begin_import(uint64_t bytes) {
  if (Status status = check_shareable(); !status.ok()) return status;
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  parts_.counters.on_driver_call(DriverCall::kReserve);
  return MappedRange::reserve(*parts_.driver, bytes);
}

Status Arena::import_piece(MappedRange& range, int descriptor, uint64_t bytes) {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  const RelaxedCapture relaxed(*parts_.driver);
  Result<PhysicalHandle> handle = import_file_descriptor(*parts_.driver, descriptor, bytes);
  if (!handle.ok()) return handle.take_status();
  parts_.counters.on_driver_call(DriverCall::kMap);
  return range.append(handle.value());
}

Status Arena::finish_import(MappedRange range, void** out) {
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  const RelaxedCapture relaxed(*parts_.driver);
  const ArenaLock lock(parts_.mutex);
  Result<uint64_t> va = parts_.shared.take_in(std::move(range), parts_.store->devices());
  if (!va.ok()) return va.take_status();
  *out = reinterpret_cast<void*>(va.value());
  return {};
}

// ---- The end of what was brought in

Status Arena::close_import(void* pointer) {
  const auto va = reinterpret_cast<uint64_t>(pointer);
  Arena* arena = SharedBlocks::arena_of(va);
  return arena == nullptr
             ? Status::invalid_pointer(fmt::format("close of {:#x}: nothing was imported there", va))
             : arena->close_own_import(va);
}

Status Arena::close_own_import(uint64_t va) {
  {
    const ArenaLock lock(parts_.mutex);
    if (!parts_.shared.is_imported(va)) {
      return Status::invalid_pointer(fmt::format("close of {:#x}: nothing was imported there", va));
    }
  }
  const ScopedContext context(*parts_.driver, parts_.context.get());
  if (!context.status().ok()) return context.status();
  const std::vector<Heap*> all = heaps_.all();
  if (heaps_.any_capturing(all)) {
    return Status::invalid_state("close while a stream is being captured: nothing can be unmapped now");
  }
  // Its users are unknown: only a wait for the whole context reaches them all.
  if (!waits_.may_wait_for_context()) {
    return Status::invalid_state(
        "close while a stream may be captured (a pool is open): the wait for whoever "
        "uses the memory would end that capture");
  }
  const RelaxedCapture relaxed(*parts_.driver);
  parts_.counters.on_host_wait();
  parts_.counters.on_sync_all_streams();
  if (Status status = waits_.synchronize_context(all); !status.ok()) return status;
  const ArenaLock lock(parts_.mutex);
  return parts_.shared.drop_imported(va);
}

}  // namespace spillway
