#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "estimator/inputs/megatron.h"
#include "estimator/inputs/patterns.h"

// megatron/core/transformer/transformer_config.py says which parts may be captured, and beside what.

namespace spillway::estimator {
namespace {

struct Module {
  const char* name;
  bool CapturedParts::*captured;
};
// What is done before tokens are sent to their experts makes nothing that the backward pass needs.
constexpr std::array<Module, 6> kModules = {{{"attn", &CapturedParts::attention},
                                             {"mlp", &CapturedParts::mlp},
                                             {"moe", &CapturedParts::experts},
                                             {"moe_router", &CapturedParts::router},
                                             {"moe_preprocess", nullptr},
                                             {"mamba", &CapturedParts::mixers}}};

std::string implementation(KeyValues& values) {
  const bool engine = values.flag("external-cuda-graph");
  const bool local = values.flag("enable-cuda-graph");
  if (engine && local)
    values.complain("external-cuda-graph: not allowed beside enable-cuda-graph; allowed: one of them");
  for (const char* old : {"external-cuda-graph", "enable-cuda-graph"}) {
    if (values.flag(old) && values.has("cuda-graph-impl"))
      values.complain(fmt::format("{}: not allowed beside cuda-graph-impl; allowed: one of them", old));
  }
  const char* otherwise = engine ? "transformer_engine" : local ? "local" : "none";
  return values.choice("cuda-graph-impl", otherwise,
                       {"none", "local", "transformer_engine", "full_iteration"});
}

void capture_whole_layers(CapturedParts& captured) {
  captured.attention = captured.mlp = captured.router = captured.experts = captured.mixers = true;
}

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Names go together as Megatron-LM asks for it.
void check_modules(KeyValues& values, const char* key, const std::vector<std::string>& names,
                   const TrainingRun& run) {
  for (const char* alone : {"full", "full_iteration"}) {
    if (has(names, alone) && names.size() > 1)
      values.complain(
          fmt::format("{}: '{}' is not allowed beside other names; allowed: it alone", key, alone));
  }
  if (has(names, "moe") && has(names, "moe_router"))
    values.complain(fmt::format("{}: 'moe' is not allowed beside moe_router; allowed: one of them", key));
  if (has(names, "moe_preprocess") && !has(names, "moe_router"))
    values.complain(fmt::format(
        "{}: 'moe_preprocess' is not allowed without moe_router; allowed: both, or neither", key));
  const bool routes =
      any_block(run.model, [](const Block& block) { return std::holds_alternative<Experts>(block); });
  const bool mixes = any_block(run.model, [](const Block& block) {
    return std::holds_alternative<Mamba>(block) || std::holds_alternative<Mixer>(block);
  });
  for (const char* name : {"moe", "moe_router"}) {
    if (has(names, name) && !routes)
      values.complain(fmt::format("{}: '{}' is not allowed; allowed: beside num-experts", key, name));
  }
  if (has(names, "mamba") && !mixes)
    values.complain(fmt::format("{}: 'mamba' is not allowed; allowed: for models with such layers", key));
  // Experts with as many tokens as come have no fixed sizes.
  if (routes && (names.empty() || has(names, "full") || has(names, "moe")))
    values.complain(
        fmt::format("{}: experts that drop no tokens are not captured; allowed: attn, mlp, moe_router, "
                    "moe_preprocess, mamba",
                    key));
}

void read_modules(KeyValues& values, const char* key, TrainingRun& run) {
  CapturedParts& captured = run.training.captured;
  const std::vector<std::string> names = listed_words(values.text(key, "full"));
  if (names.empty() || has(names, "full")) capture_whole_layers(captured);
  captured.iteration = has(names, "full_iteration");
  check_modules(values, key, names, run);
  for (const std::string& name : names) {
    if (name == "full" || name == "full_iteration") continue;
    const auto module =
        std::find_if(kModules.begin(), kModules.end(), [&](const Module& each) { return name == each.name; });
    if (module == kModules.end()) {
      values.complain(
          fmt::format("{}: '{}' is not allowed; allowed: full, full_iteration, attn, mlp, moe, moe_router, "
                      "moe_preprocess, mamba",
                      key, name));
    } else if (module->captured != nullptr) {
      captured.*module->captured = true;
    }
  }
}

}  // namespace

void read_megatron_graphs(KeyValues& values, const MegatronRun& given, TrainingRun& run) {
  const std::string kind = implementation(values);
  if (kind == "none") return;
  CapturedParts& captured = run.training.captured;
  const bool newer = values.has("cuda-graph-modules");
  if (newer && values.has("cuda-graph-scope"))
    values.complain("cuda-graph-modules: not allowed beside cuda-graph-scope; allowed: one of them");
  const char* key = newer ? "cuda-graph-modules" : "cuda-graph-scope";
  if (kind == "full_iteration") {
    captured.iteration = true;
    if (values.has(key))
      values.complain(fmt::format(
          "{}: not allowed beside cuda-graph-impl 'full_iteration'; allowed: transformer_engine", key));
  } else {
    read_modules(values, key, run);
  }
  captured.eager_steps = values.whole("cuda-graph-warmup-steps", 3, 0);
  const std::string scope = values.text(key, "full");
  if (kind == "local" && !captured.iteration)
    values.complain(
        fmt::format("cuda-graph-impl: 'local' with {} '{}' is not modelled, as each graph has a pool of its "
                    "own; allowed: none, transformer_engine, local with {} full_iteration",
                    key, scope, key));
  if (kind == "transformer_engine" && captured.iteration)
    values.complain(
        fmt::format("{}: 'full_iteration' is not allowed beside cuda-graph-impl "
                    "'transformer_engine'; allowed: cuda-graph-impl local",
                    key));
  if (run.training.recompute == Recompute::kFull && !captured.iteration)
    values.complain(
        fmt::format("recompute-granularity: 'full' is not allowed beside {} '{}'; allowed: selective, or a "
                    "graph of the full_iteration",
                    key, scope));
  if (run.model.towers.size() > 1)
    values.complain("cuda-graph-impl: graphs of models of several towers are not modelled; allowed: none");
  // Graphs that do not share their buffers came before Transformer Engine 2.7.
  if (!given.date.empty() && given.date < "2025-10")
    values.complain(fmt::format("cuda-graph-impl: graphs of {} are not modelled; allowed: runs since 2025-10",
                                given.date));
}

}  // namespace spillway::estimator
