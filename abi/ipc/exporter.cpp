#include "abi/ipc/exporter.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "abi/process.h"

namespace spillway {
namespace {

// With debug:guard, the arena's block begins with a red zone.
const void* block_of_arena(const void* pointer) {
  const bool is_guarded = Process::is_guarded() && Process::guard_of(pointer) != nullptr;
  return static_cast<const char*>(pointer) - (is_guarded ? kZoneBytes : 0);
}

PageAnswer refusal(const Status& status) {
  PageAnswer answer;
  answer.status = status.code();
  const size_t length = std::min(status.text().size(), sizeof answer.text - 1);
  status.text().copy(answer.text, length);
  return answer;
}

Status export_pages(const PageRequest& request, PageAnswer& answer, std::vector<Descriptor>& files) {
  Arena* arena = Process::existing(request.handle.device);
  if (arena == nullptr || request.count > kMostDescriptors) {
    return Status::invalid_argument("the handle names no memory of this process");
  }
  std::vector<PagePiece> pieces;
  const auto* block = reinterpret_cast<const void*>(request.handle.pointer);
  Status status = arena->export_pages(block, request.handle.identity, request.first, request.count, pieces);
  for (const PagePiece& piece : pieces) {
    answer.pages[files.size()] = piece.pages;
    files.emplace_back(piece.descriptor);
  }
  return status;
}

}  // namespace

std::string socket_name(const ProcessId& process) {
  return fmt::format("spillway-{:016x}{:016x}", process[0], process[1]);
}

Exporter& Exporter::instance() {
  // Never destroyed: its thread runs to the end of the process.
  static Exporter& exporter = *new Exporter;
  return exporter;
}

bool Exporter::is_own(const IpcHandle& handle) {
  const Lock lock(mutex_);
  return process_ != ProcessId{} && handle.process == process_;
}

Status Exporter::show(const void* pointer, spw_ipc_handle* out, uint64_t* offset) {
  const void* block = block_of_arena(pointer);
  Result<FoundBlock> found = Arena::find_block(block);
  if (!found.ok()) return found.take_status();
  Result<PageSpan> span = Process::existing(found->device)->pages_around(block);
  if (!span.ok()) return span.take_status();
  const Lock lock(mutex_);
  if (Status status = start(); !status.ok()) return status;
  IpcHandle handle;
  handle.process = process_;
  handle.pointer = reinterpret_cast<uint64_t>(block);
  handle.identity = span->identity;
  handle.pages = span->count;
  handle.pid = getpid();
  handle.device = found->device;
  handle.write(*out);
  *offset = span->offset +
            static_cast<uint64_t>(static_cast<const char*>(pointer) - static_cast<const char*>(block));
  return {};
}

Status Exporter::start() {
  if (listener_) return {};
  ProcessId drawn{};
  if (getrandom(drawn.data(), sizeof drawn, 0) != static_cast<ssize_t>(sizeof drawn)) {
    return Status::io("getrandom: no random numbers");
  }
  Result<Descriptor> listener = listen_at(socket_name(drawn));
  if (!listener.ok()) {
    return Status::io(fmt::format("no memory can be shown to other processes: {}", listener.status().text()));
  }
  listener_ = std::move(listener.value());
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this] { serve(); }).detach();
    process_ = drawn;
  } catch (...) {
    listener_ = Descriptor();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return listener_ ? Status()
                   : Status::io("no memory can be shown to other processes: no thread can be made");
}

// One process that asks does not hold up another: who is ready is answered, one message each.
void Exporter::serve() {
  std::vector<Descriptor> callers;
  for (;;) {
    std::vector<pollfd> ready{{listener_.get(), POLLIN, 0}};
    for (const Descriptor& caller : callers) ready.push_back({caller.get(), POLLIN, 0});
    if (poll(ready.data(), ready.size(), -1) < 0) continue;
    for (size_t i = callers.size(); i > 0; --i) {
      if (ready[i].revents == 0 || answer(callers[i - 1])) continue;
      callers.erase(callers.begin() + static_cast<ptrdiff_t>(i - 1));
    }
    if (ready[0].revents == 0) continue;
    if (Descriptor caller = accept_caller(listener_)) callers.push_back(std::move(caller));
  }
}

bool Exporter::answer(const Descriptor& caller) {
  PageRequest request;
  std::vector<Descriptor> files;
  if (!receive_message(caller, &request, sizeof request, files).ok()) return false;
  PageAnswer answer;
  try {
    files.clear();
    Status status = export_pages(request, answer, files);
    if (!status.ok()) files.clear();
    if (!status.ok()) answer = refusal(status);
  } catch (const std::exception& error) {
    files.clear();
    answer = refusal(Status::internal(error.what()));
  }
  answer.count = static_cast<uint32_t>(files.size());
  return send_message(caller, &answer, sizeof answer, files);
}

}  // namespace spillway
