#include <array>
#include <sstream>

#include <fmt/format.h>

#include "estimator/inputs/megatron.h"

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

// "[attn mlp]", "attn,mlp" and "attn mlp" name the same.
std::vector<std::string> words(std::string text) {
  for (char& c : text) {
    if (c == '[' || c == ']' || c == ',' || c == '\'' || c == '"') c = ' ';
  }
  std::istringstream stream(text);
  std::vector<std::string> out;
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

std::string implementation(KeyValues& values) {
  const bool engine = values.flag("external-cuda-graph");
  const bool local = values.flag("enable-cuda-graph");
  const char* old = engine ? "transformer_engine" : local ? "local" : "none";
  return values.choice("cuda-graph-impl", old, {"none", "local", "transformer_engine", "full_iteration"});
}

void capture_whole_layers(CapturedParts& captured) {
  captured.attention = captured.mlp = captured.router = captured.experts = captured.mixers = true;
}

void read_modules(KeyValues& values, const char* key, CapturedParts& captured) {
  const std::vector<std::string> names = words(values.text(key, "full"));
  if (names.empty()) capture_whole_layers(captured);
  for (const std::string& name : names) {
    if (name == "full") {
      capture_whole_layers(captured);
      continue;
    }
    if (name == "full_iteration") {
      captured.iteration = true;
      continue;
    }
    bool known = false;
    for (const Module& module : kModules) {
      if (name != module.name) continue;
      known = true;
      if (module.captured != nullptr) captured.*module.captured = true;
    }
    if (known) continue;
    values.complain(fmt::format(
        "{}: '{}' is not allowed; allowed: full, full_iteration, attn, mlp, moe, moe_router, moe_preprocess, "
        "mamba",
        key, name));
  }
}

}  // namespace

void read_megatron_graphs(KeyValues& values, const MegatronRun& given, TrainingRun& run) {
  const std::string kind = implementation(values);
  if (kind == "none") return;
  CapturedParts& captured = run.training.captured;
  const char* key = values.has("cuda-graph-modules") ? "cuda-graph-modules" : "cuda-graph-scope";
  if (kind == "full_iteration") {
    captured.iteration = true;
  } else {
    read_modules(values, key, captured);
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
  if (captured.experts && captured.router && scope != "full" && !scope.empty())
    values.complain(fmt::format("{}: 'moe' is not allowed beside moe_router; allowed: one of them", key));
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
