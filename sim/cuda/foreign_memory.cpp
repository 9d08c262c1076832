#include "sim/cuda/foreign_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace spillway::sim {

ForeignMemory describe(const State& state, const Physical& physical) {
  ForeignMemory memory{};
  memory.magic = ForeignMemory::kMagic;
  memory.pid = getpid();
  memory.file = state.memory.file_of(physical);
  memory.generation = state.generation;
  memory.id = physical.id;
  memory.offset = physical.file_offset;
  memory.bytes = physical.bytes;
  memory.device = machine_device(state.config.visible, physical.device);
  return memory;
}

bool is_own(const ForeignMemory& memory) {
  return memory.pid == getpid();
}

Physical* open_foreign(State& state, const ForeignMemory& memory, Physical::Kind kind) {
  // A device that this process does not see has no ordinal here.
  const int device = memory.device < 0 ? static_cast<int>(memory.device)
                                       : ordinal_of(state.config.visible, static_cast<int>(memory.device));
  if (memory.device >= 0 && device < 0) return nullptr;
  char* window = nullptr;
  if (memory.file >= 0) {
    const std::string path = "/proc/" + std::to_string(memory.pid) + "/fd/" + std::to_string(memory.file);
    const int source = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (source < 0) return nullptr;
    void* at = mmap(nullptr, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, source,
                    static_cast<off_t>(memory.offset));
    close(source);
    if (at == MAP_FAILED) return nullptr;
    window = static_cast<char*>(at);
  }
  return state.memory.adopt(kind, device, memory.bytes, window);
}

}  // namespace spillway::sim
