#include "abi/ipc/importer.h"

#include <fmt/format.h>

#include <algorithm>

#include "abi/ipc/channel.h"
#include "abi/ipc/exporter.h"
#include "abi/process.h"

namespace spillway {
namespace {

Status failure(const IpcHandle& handle, const Status& why) {
  return Status(why.code(), fmt::format("memory of process {} cannot be opened: {}", handle.pid, why.text()));
}

// Fetches the pages batch by batch, and maps each as it comes.
Status fetch_pages(Arena& arena, const IpcHandle& handle, MappedRange& range) {
  Result<Descriptor> channel = connect_to(socket_name(handle.process));
  if (!channel.ok()) {
    return Status::io(
        fmt::format("it has ended, or is in another network namespace, as another container is ({})",
                    channel.status().text()));
  }
  for (uint32_t done = 0; done < handle.pages;) {
    const PageRequest request{handle, done, std::min<uint32_t>(handle.pages - done, kMostDescriptors)};
    if (!send_message(channel.value(), &request, sizeof request, {})) return Status::io("it has ended");
    PageAnswer answer;
    std::vector<Descriptor> files;
    Status status = receive_message(channel.value(), &answer, sizeof answer, files);
    if (!status.ok()) return status;
    answer.text[sizeof answer.text - 1] = '\0';
    if (answer.status != SPW_OK) return Status(answer.status, answer.text);
    if (files.empty() || files.size() > answer.pages.size()) return Status::io("it answers in another form");
    for (size_t i = 0; i < files.size(); ++i) {
      const uint32_t pages = answer.pages[i];
      if (pages == 0 || pages > handle.pages - done) return Status::io("it answers in another form");
      status = arena.import_piece(range, files[i].get(), pages * kPageBytes);
      if (!status.ok()) return status;
      done += pages;
    }
  }
  return {};
}

}  // namespace

Importer& Importer::instance() {
  // Never destroyed: programs close handles from their own destructors.
  static Importer& importer = *new Importer;
  return importer;
}

Status Importer::open(const spw_ipc_handle& bytes, int device, void** out) {
  const IpcHandle handle = IpcHandle::read(bytes);
  if (handle.magic != IpcHandle::kMagic || handle.pages == 0) {
    return Status::invalid_argument("this is no handle of spw_ipc_get_handle");
  }
  if (Exporter::instance().is_own(handle)) {
    return Status::invalid_argument("a handle of this process itself: use the pointer");
  }
  Result<Arena*> arena = Process::instance().arena(device);
  if (!arena.ok()) return arena.take_status();
  const Lock lock(mutex_);
  close_unused();
  const Key key{handle.process, handle.identity, handle.pages, device};
  const auto known = opened_.find(key);
  if (known != opened_.end()) {
    ++known->second.uses;
    *out = known->second.at;
    return {};
  }
  Result<MappedRange> range = arena.value()->begin_import(handle.pages * kPageBytes);
  if (!range.ok()) return range.take_status();
  Status status = fetch_pages(*arena.value(), handle, range.value());
  if (status.ok()) status = arena.value()->finish_import(std::move(range.value()), out);
  if (!status.ok()) return failure(handle, status);
  opened_[key] = {*out, 1};
  return {};
}

Status Importer::close(void* pointer) {
  const Lock lock(mutex_);
  const auto found = std::find_if(opened_.begin(), opened_.end(), [&](const auto& entry) {
    return entry.second.at == pointer && entry.second.uses > 0;
  });
  if (found == opened_.end()) {
    return Status::invalid_pointer(
        fmt::format("close of {:#x}: no handle was opened there", reinterpret_cast<uint64_t>(pointer)));
  }
  if (--found->second.uses == 0) close_unused();
  return {};
}

// Nothing can be unmapped while a stream is captured; then it is done by a later call.
void Importer::close_unused() {
  std::erase_if(opened_, [](const auto& entry) {
    return entry.second.uses == 0 && Arena::close_import(entry.second.at).ok();
  });
}

}  // namespace spillway
