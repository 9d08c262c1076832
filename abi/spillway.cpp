// The bodies of the C ABI: arguments are checked here, exceptions end here, and nothing is decided here.
#include "include/spillway/spillway.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "abi/arena_calls.h"
#include "abi/block_origins.h"
#include "abi/boundary.h"
#include "abi/config.h"
#include "abi/ipc/exporter.h"
#include "abi/ipc/importer.h"
#include "abi/process.h"
#include "abi/trace.h"
#include "driver/context.h"

namespace spillway {
namespace {

[[gnu::noinline, gnu::cold]] Status failed_alloc(int device, Status status) {
  return Process::instance().failed_alloc(device, std::move(status));
}

inline Status alloc(Arena& arena, size_t bytes, spw_stream stream, void** out) {
  Status status = arena.allocate(bytes, stream, out);
  if (status.ok()) [[likely]]
    return status;
  return failed_alloc(arena.device(), std::move(status));
}

// With trace_stacks or dump_stacks, it is noted where the program is: for the trace, and for the block.
Status noted_alloc(int device, size_t bytes, spw_stream stream, const void* caller, void** out) {
  ProcessTrace::note_stack(caller);
  const bool notes = bytes >= BlockOrigins::kLeastBytes && BlockOrigins::are_noted();
  const uint32_t stack = notes ? BlockOrigins::capture(caller) : 0;
  Status status = alloc(*Process::existing(device), bytes, stream, out);
  if (status.ok() && stack != 0) Arena::note_stack(*out, stack);
  return status;
}

// With debug:guard, memory comes from the device's guard. `caller` is where the program called. Kept out of
// line: the path without these is not to pay for them.
[[gnu::noinline, gnu::cold]] spw_status watched_alloc(size_t bytes, int device, spw_stream stream,
                                                      const void* caller, void** out) noexcept {
  return guarded([&]() -> Status {
    if (!Process::is_guarded()) return noted_alloc(device, bytes, stream, caller, out);
    ProcessTrace::note_stack(caller);
    Result<Guard*> guard = Process::instance().guard(device);
    if (!guard.ok()) return guard.take_status();
    Status status = guard.value()->allocate(bytes, stream, caller, out);
    return status.ok() ? Status() : Process::instance().failed_alloc(device, std::move(status));
  });
}

[[gnu::noinline, gnu::cold]] spw_status guard_free(void* pointer, const void* caller) noexcept {
  return guarded([&]() -> Status {
    Guard* guard = pointer == nullptr ? nullptr : Process::guard_of(pointer);
    return guard == nullptr ? Arena::free(pointer) : guard->free(pointer, caller);
  });
}

[[gnu::noinline, gnu::cold]] spw_status guard_record_stream(void* pointer, spw_stream stream) noexcept {
  return guarded([&]() -> Status {
    Guard* guard = pointer == nullptr ? nullptr : Process::guard_of(pointer);
    return guard == nullptr ? Arena::record_stream(pointer, stream) : guard->record_stream(pointer, stream);
  });
}

// The first use of a device.
[[gnu::noinline, gnu::cold]] spw_status first_alloc(size_t bytes, int device, spw_stream stream,
                                                    const void* caller, void** out) noexcept {
  const spw_status made = with_arena(device, [](Arena&) { return Status(); });
  if (made != SPW_OK) return made;
  if (Process::is_watched()) return watched_alloc(bytes, device, stream, caller, out);
  return with_arena(device, [&](Arena& arena) { return alloc(arena, bytes, stream, out); });
}

Status guard_check(int device, uint64_t* findings) {
  if (findings != nullptr) *findings = 0;
  Result<Arena*> arena = Process::instance().used_arena(device);
  if (!arena.ok()) return arena.take_status();
  if (Process::instance().config().debug != Debug::kGuard) {
    return Status::invalid_state("nothing is guarded: set debug:guard before a device is first used");
  }
  Guard* guard = Process::existing_guard(device);
  if (guard == nullptr) return {};
  Status status = guard->check();
  if (findings != nullptr) *findings = guard->findings();
  return status;
}

// Runs `call`, which answers a CUresult, on the driver, in a context of the device.
template <typename Call>
Status in_context(int device, const char* name, Call call) {
  Result<std::shared_ptr<const Driver>> driver = Process::instance().driver();
  if (!driver.ok()) return driver.take_status();
  Result<RetainedContext> context = RetainedContext::retain(driver.value(), device);
  if (!context.ok()) return context.take_status();
  const ScopedContext scope(*driver.value(), context->get());
  if (!scope.status().ok()) return scope.status();
  return driver.value()->check(call(*driver.value()), name);
}

// `available(arena, free)` says what an arena makes of what the driver calls free.
template <typename Available>
Status memory_info(int device, uint64_t* free_bytes, uint64_t* total_bytes, Available available) {
  size_t driver_free = 0;
  size_t driver_total = 0;
  Status status = in_context(device, "cuMemGetInfo", [&](const Driver& driver) {
    return driver.cuMemGetInfo(&driver_free, &driver_total);
  });
  if (!status.ok()) return status;
  if (free_bytes != nullptr) {
    Arena* arena = Process::existing(device);
    *free_bytes = arena != nullptr ? available(*arena, driver_free)
                                   : std::min<uint64_t>(
                                         driver_free, most_bytes(Process::instance().config(), driver_total));
  }
  if (total_bytes != nullptr) *total_bytes = driver_total;
  return {};
}

void walk(const Arena& arena, spw_segment_visitor visit, void* context) {
  std::vector<spw_block> blocks;
  for (const SegmentRow& row : arena.segments()) {
    blocks.clear();
    for (const BlockRow& block : row.blocks) blocks.push_back(to_abi(block));
    const spw_segment segment{row.address,
                              row.total_bytes,
                              row.allocated_bytes,
                              row.active_bytes,
                              row.requested_bytes,
                              reinterpret_cast<spw_stream>(row.stream),
                              {row.pool_first, row.pool_second},
                              blocks.data(),
                              blocks.size()};
    if (visit(&segment, context) != 0) return;
  }
}

Status copy_out(const std::string& text, char* buffer, size_t size, size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (buffer == nullptr && size == 0 && needed != nullptr) return {};
  if (buffer == nullptr) return is_null("buffer");
  if (size <= text.size()) {
    return Status::invalid_argument(
        fmt::format("the buffer has {} bytes; needed are {}", size, text.size() + 1));
  }
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  return {};
}

Status conf_get(const char* name, char* buffer, size_t size, size_t* needed) {
  const Config config = Process::instance().config();
  if (name != nullptr) {
    Result<std::string> value = config.value(name);
    return value.ok() ? copy_out(value.value(), buffer, size, needed) : value.take_status();
  }
  std::string all;
  for (const auto& [option, value] : config.values()) {
    all += fmt::format("{}{}:{}", all.empty() ? "" : ",", option, value);
  }
  return copy_out(all, buffer, size, needed);
}

}  // namespace
}  // namespace spillway

using spillway::Arena;
using spillway::Driver;
using spillway::Guard;
using spillway::Process;
using spillway::Result;
using spillway::Status;

extern "C" {

spw_status spw_alloc(size_t bytes, int device, spw_stream stream, void** out) {
  if (out == nullptr) {
    return spillway::guarded([] { return spillway::is_null("out"); });
  }
  *out = nullptr;
  if (Arena* arena = Process::existing(device); arena != nullptr) [[likely]] {
    if (Process::is_watched()) [[unlikely]]
      return spillway::watched_alloc(bytes, device, stream, __builtin_return_address(0), out);
    return spillway::guarded([&] { return spillway::alloc(*arena, bytes, stream, out); });
  }
  return spillway::first_alloc(bytes, device, stream, __builtin_return_address(0), out);
}

spw_status spw_free(void* pointer) {
  if (Process::is_guarded()) [[unlikely]]
    return spillway::guard_free(pointer, __builtin_return_address(0));
  return spillway::guarded([&] { return Arena::free(pointer); });
}

spw_status spw_record_stream(void* pointer, spw_stream stream) {
  if (Process::is_guarded()) [[unlikely]]
    return spillway::guard_record_stream(pointer, stream);
  return spillway::guarded([&] { return Arena::record_stream(pointer, stream); });
}

spw_status spw_stream_destroyed(int device, spw_stream stream) {
  return spillway::with_used_arena(device, [&](Arena& arena) {
    if (Guard* guard = Process::existing_guard(arena.device())) guard->stream_destroyed(stream);
    return arena.stream_destroyed(stream);
  });
}

spw_status spw_stream_ends_unseen(int device, spw_stream stream) {
  return spillway::with_arena(device, [&](Arena& arena) {
    arena.expect_unseen_end(stream);
    return spillway::Status();
  });
}

spw_status spw_stream_synchronize(int device, spw_stream stream) {
  return spillway::guarded([&] {
    return spillway::in_context(device, "cuStreamSynchronize",
                                [&](const Driver& driver) { return driver.cuStreamSynchronize(stream); });
  });
}

spw_status spw_alloc_shareable(size_t bytes, int device, spw_stream stream, void** out) {
  if (out == nullptr) {
    return spillway::guarded([] { return spillway::is_null("out"); });
  }
  *out = nullptr;
  return spillway::with_arena(device,
                              [&](Arena& arena) { return arena.allocate_shareable(bytes, stream, out); });
}

spw_status spw_export_fd(const void* pointer, int* fd, uint64_t* offset, uint64_t* bytes) {
  return spillway::guarded([&]() -> Status {
    if (fd == nullptr || offset == nullptr || bytes == nullptr)
      return spillway::is_null("fd, offset or bytes");
    Result<spillway::Exported> exported = Arena::export_block(pointer);
    if (!exported.ok()) return exported.take_status();
    *fd = exported->descriptor;
    *offset = exported->offset;
    *bytes = exported->bytes;
    return {};
  });
}

spw_status spw_import_fd(int fd, uint64_t bytes, int device, void** out) {
  if (out == nullptr) {
    return spillway::guarded([] { return spillway::is_null("out"); });
  }
  *out = nullptr;
  return spillway::with_arena(device, [&](Arena& arena) { return arena.import_block(fd, bytes, out); });
}

spw_status spw_import_close(void* pointer) {
  return spillway::guarded([&] { return pointer == nullptr ? Status() : Arena::close_import(pointer); });
}

spw_status spw_ipc_get_handle(const void* pointer, spw_ipc_handle* handle, uint64_t* offset) {
  return spillway::guarded([&]() -> Status {
    if (handle == nullptr || offset == nullptr) return spillway::is_null("handle or offset");
    return spillway::Exporter::instance().show(pointer, handle, offset);
  });
}

spw_status spw_ipc_open_handle(const spw_ipc_handle* handle, int device, void** out) {
  return spillway::guarded([&]() -> Status {
    if (handle == nullptr || out == nullptr) return spillway::is_null("handle or out");
    *out = nullptr;
    return spillway::Importer::instance().open(*handle, device, out);
  });
}

spw_status spw_ipc_close_handle(void* pointer) {
  return spillway::guarded(
      [&] { return pointer == nullptr ? Status() : spillway::Importer::instance().close(pointer); });
}

spw_status spw_enable_peer(int device, int peer) {
  return spillway::with_arena(device, [&](Arena& arena) { return arena.enable_peer(peer); });
}

spw_status spw_trim(int device) {
  return spillway::with_used_arena(device, [](Arena& arena) {
    Guard* guard = Process::existing_guard(arena.device());
    Status status = guard == nullptr ? arena.trim() : guard->trim();
    // Behind that, which frees what regions had there.
    if (spillway::DeviceTiers* tiers = Process::instance().existing_tiers(arena.device()); tiers != nullptr)
      tiers->disk().give_back();
    return status;
  });
}

spw_status spw_settle(int device) {
  return spillway::with_used_arena(device, [](Arena& arena) {
    // What it keeps after its free comes back for the capture.
    Guard* guard = Process::existing_guard(arena.device());
    return guard == nullptr ? arena.settle() : guard->trim();
  });
}

spw_status spw_set_limit(int device, uint64_t bytes) {
  return spillway::with_arena(device, [&](Arena& arena) {
    Status status = arena.set_limit(bytes);
    arena.keep_limit();
    return status;
  });
}

spw_status spw_get_limit(int device, uint64_t* bytes) {
  if (bytes == nullptr) {
    return spillway::guarded([] { return spillway::is_null("bytes"); });
  }
  return spillway::with_arena(device, [&](Arena& arena) {
    *bytes = arena.limit();
    return Status();
  });
}

spw_status spw_memory_info(int device, uint64_t* free_bytes, uint64_t* total_bytes) {
  return spillway::guarded([&] {
    return spillway::memory_info(device, free_bytes, total_bytes, [](Arena& arena, uint64_t driver_free) {
      return spillway::available_bytes(arena, driver_free, 0);
    });
  });
}

spw_status spw_untaken_memory_info(int device, uint64_t* free_bytes, uint64_t* total_bytes) {
  return spillway::guarded(
      [&] { return spillway::memory_info(device, free_bytes, total_bytes, spillway::untaken_bytes); });
}

spw_status spw_add_oom_callback(int device, spw_oom_callback callback, void* context) {
  return spillway::guarded([&] { return Process::instance().add_oom_callback(device, callback, context); });
}

spw_status spw_remove_oom_callback(int device, spw_oom_callback callback, void* context) {
  return spillway::guarded(
      [&] { return Process::instance().remove_oom_callback(device, callback, context); });
}

spw_status spw_walk(int device, spw_segment_visitor visit, void* context) {
  if (visit == nullptr) {
    return spillway::guarded([] { return spillway::is_null("visit"); });
  }
  return spillway::with_used_arena(device, [&](Arena& arena) {
    spillway::walk(arena, visit, context);
    return Status();
  });
}

spw_status spw_find_block(const void* pointer, spw_block* block, int* device) {
  return spillway::guarded([&]() -> Status {
    if (block == nullptr || device == nullptr) return spillway::is_null("block or device");
    Result<spillway::FoundBlock> found = Arena::find_block(pointer);
    if (!found.ok()) return found.take_status();
    *block = spillway::to_abi(found->row);
    *device = found->device;
    return {};
  });
}

spw_status spw_find_owner(const void* pointer, spw_stream* stream, spw_pool_id* pool) {
  return spillway::guarded([&]() -> Status {
    Result<spillway::FoundBlock> found = Arena::find_block(pointer);
    if (!found.ok()) return found.take_status();
    if (stream != nullptr) *stream = reinterpret_cast<spw_stream>(found->stream);
    if (pool != nullptr) *pool = {found->pool_first, found->pool_second};
    return {};
  });
}

spw_status spw_stats_get(int device, spw_stats* stats) {
  return spillway::guarded([&]() -> Status {
    if (stats == nullptr) return spillway::is_null("stats");
    const size_t size = stats->size;
    constexpr size_t kHeader = offsetof(spw_stats, version) + sizeof(stats->version);
    if (size < kHeader) {
      return Status::invalid_argument(fmt::format(
          "stats->size is {}; it must be set to sizeof(spw_stats), here {}", size, sizeof(spw_stats)));
    }
    Result<Arena*> arena = Process::instance().used_arena(device);
    if (!arena.ok()) return arena.take_status();
    spillway::DeviceStats all = Process::counted(device).value_or(spillway::DeviceStats());
    all.size = static_cast<uint32_t>(std::min(size, sizeof(spw_stats)));
    std::memcpy(stats, static_cast<const spw_stats*>(&all), all.size);
    return {};
  });
}

spw_status spw_stats_reset_peaks(int device) {
  return spillway::with_used_arena(device, [](Arena& arena) {
    arena.reset_peaks();
    return Status();
  });
}

spw_status spw_stats_reset_accumulated(int device) {
  return spillway::with_used_arena(device, [](Arena& arena) {
    arena.reset_accumulated();
    return Status();
  });
}

spw_status spw_annotate(int device, const char* name, uint64_t bytes) {
  return spillway::guarded([&]() -> Status {
    if (name == nullptr) return spillway::is_null("name");
    return Process::instance().annotate(device, name, bytes);
  });
}

spw_status spw_annotation(int device, const char* name, uint64_t* bytes) {
  return spillway::guarded([&]() -> Status {
    if (name == nullptr || bytes == nullptr) return spillway::is_null("name or bytes");
    Result<uint64_t> found = Process::instance().annotation(device, name);
    if (!found.ok()) return found.take_status();
    *bytes = found.value();
    return {};
  });
}

spw_status spw_validate(int device) {
  return spillway::with_used_arena(device, [](Arena& arena) { return arena.validate(); });
}

spw_status spw_guard_check(int device, uint64_t* findings) {
  return spillway::guarded([&] { return spillway::guard_check(device, findings); });
}

spw_status spw_dump(const char* path, const char* format) {
  return spillway::guarded([&]() -> Status {
    if (path == nullptr) return spillway::is_null("path");
    Result<spillway::DumpFormat> named = format == nullptr
                                             ? Result<spillway::DumpFormat>(spillway::format_of(path))
                                             : spillway::format_named(format);
    if (!named.ok()) return named.take_status();
    return Process::instance().dump(path, named.value(), "call");
  });
}

spw_status spw_conf_set(const char* text) {
  return spillway::guarded([&]() -> Status {
    if (text == nullptr) return spillway::is_null("text");
    if (Status status = Process::instance().configure(text); !status.ok()) return status;
    for (int device = 0; device < spillway::Allocator::kMostDevices; ++device) {
      if (Arena* arena = Process::existing(device); arena != nullptr) arena->keep_limit();
    }
    return {};
  });
}

spw_status spw_conf_get(const char* name, char* buffer, size_t size, size_t* needed) {
  return spillway::guarded([&] { return spillway::conf_get(name, buffer, size, needed); });
}

const char* spw_conf_describe(void) {
  try {
    return spillway::configuration_page().c_str();
  } catch (...) {
    return "";
  }
}

const char* spw_last_error(void) {
  return spillway::last_error();
}

const char* spw_status_name(spw_status status) {
  switch (status) {
#define SPW_NAME(name) \
  case name:           \
    return #name;
    SPW_NAME(SPW_OK)
    SPW_NAME(SPW_ERROR_INVALID_ARGUMENT)
    SPW_NAME(SPW_ERROR_OUT_OF_MEMORY)
    SPW_NAME(SPW_ERROR_INVALID_POINTER)
    SPW_NAME(SPW_ERROR_INVALID_STATE)
    SPW_NAME(SPW_ERROR_UNSUPPORTED)
    SPW_NAME(SPW_ERROR_DRIVER)
    SPW_NAME(SPW_ERROR_IO)
    SPW_NAME(SPW_ERROR_CONFIG)
    SPW_NAME(SPW_ERROR_INTERNAL)
    SPW_NAME(SPW_ERROR_DATA_LOST)
#undef SPW_NAME
  }
  return "unknown status";
}

#define SPW_TEXT_OF(number) #number
#define SPW_TEXT(number) SPW_TEXT_OF(number)
const char* spw_version(void) {
  return SPW_TEXT(SPW_VERSION_MAJOR) "." SPW_TEXT(SPW_VERSION_MINOR) "." SPW_TEXT(SPW_VERSION_PATCH);
}

}  // extern "C"
