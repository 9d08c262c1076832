#include "sim/nccl/driver.h"

#include <dlfcn.h>

#include "sim/nccl/client.h"

namespace spillway::nccl {
namespace {

template <typename Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
}

uint64_t look() {
  const Client* client = Client::get();
  return client == nullptr ? 0 : client->looked();
}

void wait(uint64_t looked) {
  if (Client* client = Client::get()) client->wait_for_answer(false, looked);
}

}  // namespace

Driver::Driver() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return;
  find(library, "spwSimEnqueueExternal", &enqueue_);
  find(library, "spwSimTouch", &touch_);
  find(library, "spwSimProgress", &progress_);
  find(library, "spwSimPeek", &peek_);
  find(library, "spwSimPoke", &poke_);
  decltype(&spwSimSetHold) set_hold = nullptr;
  find(library, "spwSimSetHold", &set_hold);
  if (set_hold != nullptr) set_hold(look, wait);
}

const Driver& driver() {
  static const Driver kDriver;
  return kDriver;
}

}  // namespace spillway::nccl
