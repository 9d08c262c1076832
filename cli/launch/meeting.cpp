#include "cli/launch/meeting.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

namespace spillway {

Status Meeting::start(const std::string& folder, int ranks) {
  const std::string path = folder + "/libspillway_nccl.so.0";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return Status::io(fmt::format("the simulated NCCL cannot be opened: {}", why == nullptr ? path : why));
  }
  const auto start = reinterpret_cast<void* (*)(const char*, int)>(::dlsym(library, "spwMeetingStart"));
  end_ = reinterpret_cast<const char* (*)(void*)>(::dlsym(library, "spwMeetingEnd"));
  if (start == nullptr || end_ == nullptr) {
    return Status::io(fmt::format("{} is not the simulated NCCL of this Spillway", path));
  }
  const std::string name = fmt::format("spillway-dryrun-{}", ::getpid());
  meeting_ = start(name.c_str(), ranks);
  if (meeting_ == nullptr) return Status::io("the ranks' meeting cannot be opened: no Unix sockets");
  ::setenv("SPILLWAY_DRYRUN_MEETING", name.c_str(), 1);
  return {};
}

MeetingResult Meeting::end() {
  if (meeting_ == nullptr) return {};
  const nlohmann::json said = nlohmann::json::parse(end_(std::exchange(meeting_, nullptr)));
  return {said.at("kind"), said.at("lines"), said.at("notes")};
}

}  // namespace spillway
