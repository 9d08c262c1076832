#include "estimator/inputs/run_file.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "estimator/inputs/adapter.h"
#include "estimator/inputs/diffusers.h"
#include "estimator/inputs/fp8.h"
#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/hugging_face_code.h"
#include "estimator/inputs/key_values.h"
#include "estimator/inputs/known_models.h"
#include "estimator/inputs/nearest.h"
#include "estimator/inputs/preference.h"
#include "estimator/inputs/quantization.h"
#include "estimator/inputs/run_sections.h"
#include "estimator/inputs/run_words.h"
#include "estimator/inputs/serving.h"
#include "estimator/inputs/transformers_code.h"
#include "estimator/inputs/vision_part.h"
#include "estimator/measured.h"
#include "estimator/reserved.h"

namespace spillway::estimator {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 20;

std::string node_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  return "";
}

Status add_section(const toml::table& section, const std::string& prefix, RunKeys& out) {
  for (const auto& [name, node] : section) {
    const std::string key = prefix + std::string(name.str());
    if (const auto* inner = node.as_table()) {
      if (Status status = add_section(*inner, key + ".", out); !status.ok()) return status;
    } else if (node.is_array() || node.is_date() || node.is_time() || node.is_date_time()) {
      return Status::invalid_argument(
          fmt::format("{}: not allowed; allowed: a text, a number, true or false", key));
    } else {
      out[key] = node_text(node);
    }
  }
  return {};
}

void read_precision(KeyValues& values, const char* usual, Training& training) {
  const std::string precision = values.choice(
      "train.precision", usual, {"bf16-mixed", "fp16-mixed", "autocast", "bf16", "fp16", "fp32"});
  training.mixed = precision == "bf16-mixed" || precision == "fp16-mixed";
  // Autocast keeps fp32 weights and states; activations are 16-bit.
  training.autocast = precision == "autocast";
  training.precision = precision == "fp32"               ? Precision::kFp32
                       : precision.rfind("fp16", 0) == 0 ? Precision::kFp16
                                                         : Precision::kBf16;
  training.fp32_gradients = values.choice("train.gradients", "same", {"same", "fp32"}) == "fp32";
  training.half_master = values.choice("train.master_weights", "fp32", {"fp32", "same"}) == "same";
  training.half_states = values.choice("train.optimizer_states", "fp32", {"fp32", "same"}) == "same";
}

struct OptimizerName {
  const char* name;
  OptimizerKind kind;
  bool projects = false;  // gradients of matrices
};
constexpr std::array<OptimizerName, 14> kOptimizers = {{{"adamw", OptimizerKind::kAdam},
                                                        {"adamw8bit", OptimizerKind::kAdam8bit},
                                                        {"adamw4bit", OptimizerKind::kAdam4bit},
                                                        {"adam-mini", OptimizerKind::kAdamMini},
                                                        {"adafactor", OptimizerKind::kAdafactor},
                                                        {"lion", OptimizerKind::kLion},
                                                        {"muon", OptimizerKind::kMuon},
                                                        {"sgd-momentum", OptimizerKind::kSgdMomentum},
                                                        {"sgd", OptimizerKind::kSgd},
                                                        {"galore", OptimizerKind::kAdam, true},
                                                        {"galore8bit", OptimizerKind::kAdam8bit, true},
                                                        {"galore-adafactor", OptimizerKind::kAdafactor, true},
                                                        {"apollo", OptimizerKind::kAdam, true},
                                                        {"badam", OptimizerKind::kAdam}}};

std::string written_optimizer(const KeyValues& values) {
  return values.has("train.optimizer") ? values.peek("train.optimizer") : "adamw";
}

// LISA trains some layers at a time, BAdam one.
void read_turns(KeyValues& values, TrainingRun& run) {
  constexpr const char* kKey = "train.layers_at_a_time";
  const bool badam = written_optimizer(values) == "badam";
  if (!badam && !values.has(kKey)) return;
  const auto layers = static_cast<int64_t>(run.model.towers.back().layers.size());
  Turns& turns = run.training.turns;
  turns.layers = values.whole(kKey, 1, 1, layers);
  turns.others = turns.states_stay = !badam;
  turns.fp32_copies = badam;
  const std::string key = badam ? "train.optimizer: 'badam'" : fmt::format("{}: '{}'", kKey, turns.layers);
  if (run.training.adapter.on() || run.training.frozen.on())
    values.complain(fmt::format("{} is not allowed beside weights that are frozen for good", key));
  if (run.model.towers.size() > 1)
    values.complain(fmt::format("{} is not modelled for a model of several parts", key));
  if (run.framework != Framework::kTransformers)
    values.complain(
        fmt::format("{} is not modelled here; allowed: beside what transformers' own code runs", key));
}

void check_whole_weights(KeyValues& values, const TrainingRun& run) {
  const Parallel& parallel = run.parallel;
  const bool divided = parallel.tensor > 1 || parallel.pipeline > 1 || parallel.expert > 1 ||
                       parallel.sharding != DataSharding::kNone;
  if (run.training.projection_rank > 0 && (run.training.adapter.on() || run.training.frozen.on()))
    values.complain(
        fmt::format("train.optimizer: '{}' is not allowed beside weights that are frozen for good",
                    written_optimizer(values)));
  if (!divided || !needs_whole_weights(run.training)) return;
  const bool by_optimizer = run.training.projection_rank > 0 || written_optimizer(values) == "badam";
  values.complain(fmt::format(
      "train.{}: not modelled where ranks divide weights or states; allowed: parallel.gpus alone",
      by_optimizer ? fmt::format("optimizer '{}'", written_optimizer(values)) : "layers_at_a_time"));
}

void read_optimizer(KeyValues& values, Training& training) {
  const std::string chosen =
      values.choice("train.optimizer", "adamw",
                    {"adamw", "adamw8bit", "adamw4bit", "adam-mini", "adafactor", "lion", "muon",
                     "sgd-momentum", "sgd", "galore", "galore8bit", "galore-adafactor", "apollo", "badam"});
  for (const OptimizerName& name : kOptimizers) {
    if (chosen != name.name) continue;
    training.optimizer = name.kind;
    if (name.projects) training.projection_rank = values.whole("train.optimizer_rank", 128, 1, 1 << 20);
  }
  if (training.projection_rank == 0 && values.has("train.optimizer_rank"))
    values.complain(fmt::format(
        "train.optimizer_rank: not allowed beside train.optimizer '{}'; allowed: galore, galore8bit, "
        "galore-adafactor, apollo",
        chosen));
}

void read_recompute(KeyValues& values, TrainingRun& run) {
  Training& training = run.training;
  const std::string recompute =
      values.choice("train.recompute", "none", {"none", "selective", "operators", "full"});
  training.recompute = recompute == "full"        ? Recompute::kFull
                       : recompute == "operators" ? Recompute::kOperators
                       : recompute == "selective" ? Recompute::kSelective
                                                  : Recompute::kNone;
  training.modules.attention_core = training.recompute == Recompute::kSelective;
  const auto layers = static_cast<int64_t>(run.model.towers.back().layers.size());
  const int64_t kept =
      values.has("train.checkpoints") ? values.whole("train.checkpoints", layers, 1, layers) : 0;
  training.recompute_layers =
      kept > 0 ? (layers + kept - 1) / kept : values.whole("train.recompute_layers", 1, 1, layers);
  training.partition_checkpoints = values.truth("train.partition_checkpoints");
}

// A config.json is one of transformers' models, which its own code runs.
Framework read_framework(KeyValues& values) {
  const bool is_config = values.flag("model.is_config_json");
  const std::string framework = values.choice("train.framework", is_config ? "transformers" : "pytorch",
                                              {"transformers", "pytorch", "megatron"});
  return framework == "megatron"       ? Framework::kMegatron
         : framework == "transformers" ? Framework::kTransformers
                                       : Framework::kPytorch;
}

void read_optimizer_step(KeyValues& values, Training& training) {
  const std::string step =
      values.choice("train.optimizer_step", "fused", {"fused", "foreach", "for-loop", "in-backward"});
  training.foreach_step = step == "foreach";
  training.loop_step = step == "for-loop" || training.projection_rank > 0;
  if (training.projection_rank > 0 && training.foreach_step)
    values.complain(
        "train.optimizer_step: 'foreach' is not allowed where gradients are projected; allowed: for-loop, "
        "in-backward");
  training.step_in_backward = step == "in-backward";
  if (training.step_in_backward && training.microbatches > 1)
    values.complain(
        "train.optimizer_step: 'in-backward' is not allowed beside train.gradient_accumulation; allowed: 1");
}

void read_train(KeyValues& values, TrainingRun& run) {
  Training& training = run.training;
  for (const char* key : {"train.resolution", "train.encodes"}) {
    if (values.has(key)) values.complain(fmt::format("{}: not allowed; the model makes no images", key));
  }
  run.framework = read_framework(values);
  training.micro_batch = values.whole("train.micro_batch", 1, 1, 1 << 20);
  training.microbatches = values.whole("train.gradient_accumulation", 1, 1, 1 << 20);
  const int64_t usual = std::min<int64_t>(4096, run.model.towers.back().sequence);
  const int64_t sequence = values.whole("train.sequence", usual, 1, int64_t{1} << 24);
  if (const Tower& last = run.model.towers.back(); last.fixed && sequence != last.sequence)
    values.complain(fmt::format(
        "train.sequence: '{}' is not allowed; allowed: the {} tokens that the model's samples have", sequence,
        last.sequence));
  for (Tower& tower : run.model.towers) {
    if (!tower.fixed) tower.sequence = sequence;
  }
  read_images(values, run);
  if (run.model.positions > 0 && sequence > run.model.positions) {
    values.complain(
        fmt::format("train.sequence: '{}' is not allowed; allowed: up to the model's {} positions", sequence,
                    run.model.positions));
  }
  read_precision(values, "bf16-mixed", training);
  read_optimizer(values, training);
  training.hidden_dropout = values.number("train.dropout", 0, 0, 1) > 0;
  training.attention_dropout = values.number("train.attention_dropout", 0, 0, 1) > 0;
  training.attention = values.choice("train.attention", "flash", {"flash", "materialised"}) == "flash"
                           ? AttentionKernel::kFlash
                           : AttentionKernel::kMaterialised;
  const std::string loss =
      values.choice("train.loss", run.framework == Framework::kMegatron ? "vocabulary-parallel" : "eager",
                    {"eager", "chunked", "fused-linear", "vocabulary-parallel", "fused"});
  training.cross_entropy = loss == "eager"          ? CrossEntropy::kEager
                           : loss == "chunked"      ? CrossEntropy::kChunked
                           : loss == "fused-linear" ? CrossEntropy::kFusedLinear
                           : loss == "fused"        ? CrossEntropy::kFused
                                                    : CrossEntropy::kVocabularyParallel;
  read_recompute(values, run);
  training.norm_in_fp32 = values.truth("train.norm_in_fp32");
  const std::string recipe =
      values.choice("train.fp8", "none", {"none", "delayed", "tensorwise", "blockwise", "mxfp8"});
  if (recipe != "none" && training.precision == Precision::kFp32)
    values.complain("train.fp8: not allowed beside train.precision 'fp32'; allowed: 16-bit precisions");
  training.fp8 = fp8_recipe(recipe);
  read_optimizer_step(values, training);
  training.step_graph = values.choice("train.cuda_graph", "none", {"none", "step"}) == "step";
  training.expert_imbalance = values.number("train.expert_imbalance", 1, 1, 1000);
}

void read_parallel(KeyValues& values, TrainingRun& run) {
  Parallel& parallel = run.parallel;
  parallel.world = values.whole("parallel.gpus", 1, 1, kMostRanks);
  parallel.tensor = values.whole("parallel.tensor", 1, 1, kMostRanks);
  parallel.sequence = values.truth("parallel.sequence_parallel") && parallel.tensor > 1;
  parallel.pipeline = values.whole("parallel.pipeline", 1, 1, kMostRanks);
  parallel.virtual_stages = values.whole("parallel.virtual_stages", 1, 1, 10000);
  parallel.context = values.whole("parallel.context", 1, 1, kMostRanks);
  parallel.expert = values.whole("parallel.expert", 1, 1, kMostRanks);
  parallel.expert_tensor = values.whole("parallel.expert_tensor", 1, 1, kMostRanks);
  parallel.optimizer_instances = values.whole("parallel.replicas", 1, 1, kMostRanks);
  constexpr std::array<DataSharding, 4> kStages = {DataSharding::kNone, DataSharding::kOptimizer,
                                                   DataSharding::kGradients, DataSharding::kParameters};
  parallel.sharding = kStages[static_cast<size_t>(values.whole("parallel.zero", 0, 0, 3))];
  // Prediction layers stand on the last stage, beside its share of the others.
  const int64_t predictions = run.model.prediction_layers;
  const int64_t layers = static_cast<int64_t>(run.model.towers.back().layers.size()) - predictions;
  const int64_t stages = parallel.pipeline * parallel.virtual_stages;
  if (predictions == 0 || layers % stages != 0) return;
  parallel.stage_layers.assign(static_cast<size_t>(stages), layers / stages);
  parallel.stage_layers.back() += predictions;
}

// What trains a denoiser is diffusers' own code: fp32 weights under autocast, or 16-bit ones beside adapters.
void read_denoising(KeyValues& values, TrainingRun& run) {
  Training& training = run.training;
  training.micro_batch = values.whole("train.micro_batch", 1, 1, 1 << 20);
  training.microbatches = values.whole("train.gradient_accumulation", 1, 1, 1 << 20);
  const bool adapts = values.has("adapter.kind") && values.peek("adapter.kind") != "none";
  read_precision(values, adapts ? "bf16-mixed" : "autocast", training);
  read_optimizer(values, training);
  if (training.projection_rank > 0 || written_optimizer(values) == "badam")
    values.complain(fmt::format("train.optimizer: '{}' is not modelled for a model of images",
                                written_optimizer(values)));
  read_optimizer_step(values, training);
  if (training.step_in_backward)
    values.complain(
        "train.optimizer_step: 'in-backward' is not modelled for a model of images; allowed: "
        "fused, foreach, for-loop");
  training.recompute = values.choice("train.recompute", "none", {"none", "full"}) == "full"
                           ? Recompute::kFull
                           : Recompute::kNone;
}

void read_pipeline_run(KeyValues& values, const RunKeys& keys, TrainingRun& run) {
  run.framework = Framework::kTransformers;
  run.imaging.generates = asks_to_serve(keys);
  if (!run.imaging.generates) {
    read_denoising(values, run);
    run.parallel.world = values.whole("parallel.gpus", 1, 1, kMostRanks);
    read_communication(values, run);
    read_adapter(values, run);
  }
  read_imaging(values, run);
}

}  // namespace

std::string config_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  for (const char* name : {"config.json", "model_index.json"}) {
    const std::filesystem::path inside = std::filesystem::path(path) / name;
    if (std::filesystem::exists(inside, error)) return inside.string();
  }
  return path;
}

namespace {

// A path beside the run file, or a model's name.
Result<RunKeys> read_named_model(const std::string& named, const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / named).string();
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    if (const KnownModel* known = find_known_model(named)) return known_model_keys(*known);
  }
  std::ifstream file(config_of(path), std::ios::binary);
  if (!file || std::filesystem::is_directory(config_of(path)))
    return Status::io(fmt::format("model.config: {}: cannot be read{}", path, meant_model(named)));
  std::ostringstream json;
  json << file.rdbuf();
  Result<RunKeys> model =
      is_diffusers_json(json.str())
          ? read_diffusers_json(json.str(), std::filesystem::path(config_of(path)).parent_path().string())
          : read_model_json(json.str());
  if (!model.ok()) return Status::invalid_argument(fmt::format("{}: {}", path, model.status().text()));
  return model;
}

}  // namespace

Result<RunKeys> read_run_toml(const std::string& text, const std::string& folder) {
  RunKeys out;
  try {
    const toml::table root = toml::parse(text);
    for (const auto& [name, node] : root) {
      const auto* section = node.as_table();
      if (section == nullptr) {
        const NamedValue named = run_key(std::string(name.str()), node_text(node));
        if (named.key.find('.') == std::string::npos || node.is_array()) {
          return Status::invalid_argument(
              fmt::format("{}: not allowed; allowed: sections model, train, serve, adapter, rollout, "
                          "parallel, communication, offload, "
                          "overhead, allocator{}",
                          name.str(), meant_run_key(std::string(name.str()))));
        }
        out[named.key] = named.value;
        continue;
      }
      if (Status status = add_section(*section, std::string(name.str()) + ".", out); !status.ok())
        return status;
    }
  } catch (const toml::parse_error& error) {
    return Status::invalid_argument(
        fmt::format("line {}: not TOML: {}", error.source().begin.line, error.description()));
  }
  std::vector<std::string> said;
  for (const auto& [key, value] : out) {
    if (key.rfind("model.", 0) == 0 && key != "model.config") said.push_back(key);
  }
  const auto config = out.find("model.config");
  if (config == out.end()) {
    if (Status status = check_model_keys(out, said); !status.ok()) return status;
    return out;
  }
  const std::string named = config->second;
  out.erase(config);
  Result<RunKeys> model = read_named_model(named, folder);
  if (!model.ok()) return model;
  // What names a file of Hugging Face's is run by transformers.
  out["model.is_config_json"] = "true";
  for (auto& [key, value] : model.value()) out.emplace(key, value);
  if (Status status = check_model_keys(out, said); !status.ok()) return status;
  return out;
}

namespace {

Status unknown_model_key(const std::string& key, const KeyValues& values) {
  return Status::invalid_argument(
      fmt::format("{}: not known; allowed: the keys that give this type of model its size{}", key,
                  did_you_mean(key, values.asked())));
}

Status check_pipeline_keys(const RunKeys& keys, const std::vector<std::string>& said) {
  KeyValues values(keys);
  Notes notes;
  if (!read_pipeline(values, notes).ok()) return {};
  const std::vector<std::string> unread = values.unread();
  for (const std::string& key : said) {
    if (std::find(unread.begin(), unread.end(), key) != unread.end()) return unknown_model_key(key, values);
  }
  return {};
}

}  // namespace

Status check_model_keys(const RunKeys& keys, const std::vector<std::string>& said) {
  if (said.empty()) return {};
  if (has_pipeline(keys)) return check_pipeline_keys(keys, said);
  KeyValues values(keys);
  Notes notes;
  // What is wrong with the model is said by read_run().
  const Result<Model> model = read_hugging_face(values, "model.", notes);
  if (!model.ok()) return {};
  TrainingRun scratch;
  read_quantization(values, "model.", scratch);
  read_code(values, "model.", model.value());
  if (asks_to_serve(keys)) mark_serving_model_keys(values);
  const std::vector<std::string> unread = values.unread();
  for (const std::string& key : said) {
    if (std::find(unread.begin(), unread.end(), key) == unread.end()) continue;
    return unknown_model_key(key, values);
  }
  return {};
}

Result<RunKeys> read_model_json(const std::string& text) {
  Result<std::map<std::string, std::string>> values = flatten_json(text);
  if (!values.ok()) return values.take_status();
  // A composite model holds its language part under this name.
  const auto part = values->lower_bound("text_config.");
  const bool nested = part != values->end() && part->first.rfind("text_config.", 0) == 0;
  RunKeys out;
  for (const auto& [key, value] : values.value()) {
    if (!nested) out["model." + key] = value;
    if (nested && key.rfind("text_config.", 0) == 0) out["model." + key.substr(12)] = value;
    // Said of the whole beside its parts, and of its towers of images and sounds.
    if (nested && (key.rfind("quantization_config.", 0) == 0 || key.rfind("vision_config.", 0) == 0 ||
                   key.rfind("audio_config.", 0) == 0))
      out["model." + key] = value;
    if (nested && key.find('.') == std::string::npos) out["model.whole." + key] = value;
  }
  if (!nested) return out;
  const auto said = [&](const char* key) {
    const auto found = values->find(key);
    return found == values->end() ? std::string() : found->second;
  };
  if (const std::string name = said("architectures"); !name.empty()) out.emplace("model.architectures", name);
  // Since transformers 5 the whole says it, but for Llama 4, whose language part has a head of its own.
  const std::string tied = said("tie_word_embeddings");
  const bool is_old = said("transformers_version").rfind("4.", 0) == 0;
  if (!tied.empty() && !is_old && said("model_type") != "llama4") out["model.tie_word_embeddings"] = tied;
  out["model.text_config"] = "true";
  if (const auto type = values->find("model_type"); type != values->end()) {
    out.emplace("model.model_type", type->second);
    out["model.part_of"] = type->second;
  }
  return out;
}

void add_warnings(const std::vector<std::string>& warnings, RunKeys& keys) {
  for (const std::string& warning : warnings) keys.emplace(fmt::format("warning.{}", keys.size()), warning);
}

Result<TrainingRun> read_run(const RunKeys& written) {
  Result<RunKeys> translated = translate_words(written);
  if (!translated.ok()) return translated.take_status();
  const RunKeys& keys = translated.value();
  KeyValues values(keys);
  TrainingRun run;
  for (auto at = keys.lower_bound("warning."); at != keys.end() && at->first.rfind("warning.", 0) == 0; ++at)
    run.notes.warnings.push_back(values.text(at->first, ""));
  if (values.has("recipe.trainer")) run.trainer = values.text("recipe.trainer", "");
  const bool makes_images = has_pipeline(keys);
  Result<Model> model =
      makes_images ? read_pipeline(values, run.notes) : read_hugging_face(values, "model.", run.notes);
  if (!model.ok()) return model.take_status();
  run.model = std::move(model.value());
  if (makes_images) {
    read_pipeline_run(values, keys, run);
  } else {
    read_train(values, run);
    read_quantization(values, "model.", run);
    read_parallel(values, run);
    read_communication(values, run);
    read_offload(values, run);
    read_transformers(values, run);
    read_adapter(values, run);
    read_turns(values, run);
    read_preference(values, run);
    check_whole_weights(values, run);
  }
  run.allocator =
      find_allocator(values.choice("allocator.model", "spillway", {"spillway", "pytorch", "expandable"}))
          .value_or(AllocatorModel::kSpillway);
  run.reserve.cublas_workspace_bytes = read_size(values, "overhead.workspace", 32 * kMiB);
  // Autograd runs the backward pass in a thread of its own, which has a handle of its own (CUDABlas.cpp).
  const bool has_backward = run.framework == Framework::kTransformers && !run.imaging.generates;
  run.reserve.cublas_workspaces = has_backward ? 2 : 1;
  run.reserve.engine_workspaces = 0;
  run.reserve.context_bytes = read_size(values, "overhead.context", kContextBytes.value);
  run.reserve.communicator_bytes =
      read_size(values, "overhead.communicators", run.parallel.world > 1 ? kCommunicatorBytes.value : 0);
  run.reserve.declared_bytes = read_size(values, "overhead.extra", 0);
  if (!values.status().ok()) return values.status();
  for (const std::string& key : values.unread()) {
    // A model's file may say more than what touches memory, and a run's file more than what makes images.
    if (key.rfind("model.", 0) == 0) continue;
    if (run.imaging.generates && key.rfind("serve.", 0) != 0) continue;
    const std::vector<std::string_view>& names = run_key_names();
    if (makes_images && std::find(names.begin(), names.end(), key) != names.end())
      return Status::invalid_argument(fmt::format(
          "{}: not allowed; a model of images has the keys listed in docs/estimate-images.md", key));
    return Status::invalid_argument(
        fmt::format("{}: not known; allowed: the keys listed in docs/estimate{}.md{}", key,
                    makes_images ? "-images" : "", meant_run_key(key)));
  }
  for (const std::string& assumed : values.assumed()) run.notes.assumptions.push_back(assumed);
  return run;
}

}  // namespace spillway::estimator
