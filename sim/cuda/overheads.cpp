#include "sim/cuda/overheads.h"

namespace spillway::sim {
namespace {

// A context takes from some 100 MiB to more than 500, by the number of multiprocessors: 107 MiB on an RTX
// 4060 Ti and 555 MiB on an RTX PRO 6000 (ggml-org/llama.cpp, pull request 23604), some 300 MiB of PyTorch's
// (pytorch/pytorch, issue 107667).
constexpr uint64_t kContextBytes = uint64_t{300} << 20;
constexpr uint64_t kModuleBytes = uint64_t{2} << 20;

Physical* take(State& state, int device, uint64_t bytes) {
  const uint64_t granularity = state.config.granularity_bytes;
  return state.memory.create(Physical::Kind::kAllocation, device,
                             (bytes + granularity - 1) / granularity * granularity);
}

}  // namespace

bool take_context_memory(State& state, Context* context) {
  if (!state.config.overheads) return true;
  context->memory = take(state, context->device, kContextBytes);
  return context->memory != nullptr;
}

bool take_module_memory(State& state, Context* context, CUmodule module) {
  if (!state.config.overheads || context->code.contains(module)) return true;
  Physical* code = take(state, context->device, kModuleBytes);
  if (code == nullptr) return false;
  context->code[module] = code;
  return true;
}

void release_module(State& state, CUmodule module) {
  state.contexts.for_each([&](Context& context) {
    const auto found = context.code.find(module);
    if (found == context.code.end()) return;
    state.memory.release(found->second);
    context.code.erase(found);
  });
}

void release_context_memory(State& state, Context* context) {
  for (const auto& [module, code] : context->code) state.memory.release(code);
  context->code.clear();
  if (context->memory != nullptr) state.memory.release(context->memory);
  context->memory = nullptr;
}

}  // namespace spillway::sim
