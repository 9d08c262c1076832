#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "cli/torch_peer/torch_peer.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAdvice = "run scripts/quickstart, which installs torch, and build again";

std::string dl_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown loader error";
}

// The program's environment may set PyTorch's allocator up for its own purposes; a comparison must not
// depend on it.
bool configure_process(bool expandable_segments) {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
                           "PYTORCH_NO_CUDA_MEMORY_CACHING"}) {
    if (unsetenv(name) != 0) return false;
  }
  return !expandable_segments || setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 1) == 0;
}

}  // namespace

Result<const TorchPeer*> load_torch_peer(bool expandable_segments, int device_count) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return Status::io("/proc/self/exe cannot be read: " + error.message());
  const fs::path folder = program.parent_path().parent_path() / "lib";
  const fs::path peer_path = folder / "libspillway_torch_peer.so";
  if (!fs::exists(peer_path, error)) {
    return Status::unsupported("this build has no PyTorch peer: " + std::string(kAdvice));
  }
  if (!configure_process(expandable_segments)) {
    return Status::internal("the environment of this process cannot be changed");
  }
  // libc10_cuda.so looks for these by name, and the loader then finds them already open. None is ever closed:
  // they register destructors.
  for (const char* name : {SPILLWAY_CUDART, "libnvidia-ml.so.1"}) {
    if (dlopen((folder / "sim" / name).c_str(), RTLD_NOW) == nullptr) {
      return Status::unsupported("what PyTorch's allocator needs of CUDA cannot be opened: " + dl_error());
    }
  }
  void* library = dlopen(peer_path.c_str(), RTLD_NOW);
  if (library == nullptr) {
    return Status::unsupported("the PyTorch peer cannot be opened (" + dl_error() + "): " + kAdvice);
  }
  void* symbol = dlsym(library, "spw_torch_peer");
  if (symbol == nullptr) return Status::unsupported("the PyTorch peer is foreign: " + dl_error());
  decltype(&spw_torch_peer) get_peer = nullptr;
  std::memcpy(&get_peer, &symbol, sizeof get_peer);
  const TorchPeer* peer = get_peer();
  if (peer->init(device_count) != SPW_OK) {
    return Status::driver(std::string("PyTorch's allocator did not start: ") + peer->last_error());
  }
  return peer;
}

}  // namespace spillway
