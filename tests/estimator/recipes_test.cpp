// Recipes of other trainers: small files of our own with the keys that real ones have.
#include "estimator/inputs/recipes/recipes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <string_view>

#include "estimator/inputs/recipes/yaml_values.h"
#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

using testing::HasSubstr;

RunKeys must_recipe(const std::string& text, int64_t gpus = 0) {
  Result<RunKeys> keys = read_recipe(text, {".", gpus, {}});
  EXPECT_TRUE(keys.ok()) << keys.status().text();
  return keys.ok() ? keys.value() : RunKeys{};
}

std::string refusal(const std::string& text) {
  const Result<RunKeys> keys = read_recipe(text, {".", 0, {}});
  EXPECT_FALSE(keys.ok()) << text;
  return keys.status().text();
}

// All warnings of the run in one text.
std::string warnings_of(const RunKeys& keys) {
  std::string out;
  for (const std::string& warning : must_read(keys).notes.warnings) out += warning + "\n";
  return out;
}

TEST(FlattenYaml, JoinsNamesAndLists) {
  const auto flat =
      flatten_yaml("a:\n  b: 1\n  c: [x, y]\nd:\n - e: 2\n   f: null\ng: ${a.b}/end\nh: ~\ni: 500_000\n");
  ASSERT_TRUE(flat.ok()) << flat.status().text();
  EXPECT_EQ(flat.value(),
            (std::map<std::string, std::string>{
                {"a.b", "1"}, {"a.c", "x,y"}, {"d.0.e", "2"}, {"g", "1/end"}, {"i", "500000"}}));
}

TEST(FlattenYaml, RefusesWhatIsNoMapping) {
  EXPECT_THAT(flatten_yaml("- 1\n- 2\n").status().text(), HasSubstr("not a mapping"));
  EXPECT_THAT(flatten_yaml("a: [1, 2\n").status().text(), HasSubstr("not YAML"));
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_THAT(flatten_yaml(deep + std::string(100, ' ') + "b: 1\n").status().text(), HasSubstr("too deep"));
}

constexpr const char* kAxolotl = R"(
base_model: NousResearch/Llama-3.2-1B
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_target_modules:
  - gate_proj
  - down_proj
datasets:
  - path: some/texts
    type: alpaca
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: paged_adamw_8bit
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
wandb_project:
)";

TEST(Axolotl, ReadsAnAdapterOnFourBits) {
  const RunKeys keys = must_recipe(kAxolotl);
  EXPECT_EQ(keys.at("adapter.kind"), "qlora");
  EXPECT_EQ(keys.at("adapter.rank"), "32");
  EXPECT_EQ(keys.at("adapter.targets"), "gate_proj,down_proj");
  const TrainingRun run = must_read(keys);
  EXPECT_EQ(run.framework, Framework::kTransformers);
  EXPECT_TRUE(run.training.frozen.on());
  EXPECT_EQ(run.training.micro_batch, 2);
  EXPECT_EQ(run.training.microbatches, 4);
  EXPECT_EQ(run.training.optimizer, OptimizerKind::kAdam8bit);
  EXPECT_EQ(run.training.recompute, Recompute::kFull);
  EXPECT_EQ(run.training.precision, Precision::kBf16);
  EXPECT_EQ(run.model.towers.back().sequence, 2048);
  EXPECT_THAT(warnings_of(keys), HasSubstr("does not say how many GPUs"));
  EXPECT_THAT(warnings_of(keys), testing::Not(HasSubstr("not read")));
}

TEST(Axolotl, NamesWhatItDoesNotKnow) {
  EXPECT_THAT(warnings_of(must_recipe(std::string(kAxolotl) + "expand_the_model: 2\nquietly: false\n", 1)),
              testing::AllOf(HasSubstr("not read"), HasSubstr("expand_the_model"),
                             testing::Not(HasSubstr("quietly"))));
  EXPECT_THAT(refusal(std::string(kAxolotl) + "rl: dpo\n"), HasSubstr("rl: 'dpo' is not modelled"));
  EXPECT_THAT(refusal("base_model: llama-3.1-8b\noptimizer: ao_adamw_fp8\n"),
              HasSubstr("optimizer: 'ao_adamw_fp8' is not modelled"));
  EXPECT_THAT(refusal("base_model: nobody/has-this-8b\n"), HasSubstr("'nobody/has-this-8b' is not known"));
  EXPECT_THAT(refusal("base_model: llama-3.1-8b\nadapter: llama-adapter\n"),
              HasSubstr("allowed: lora, qlora"));
}

TEST(Axolotl, ProjectsGradientsAndTrainsLayersInTurns) {
  const std::string start = "base_model: llama-3.1-8b\nbf16: true\n";
  const TrainingRun galore =
      must_read(must_recipe(start + "optimizer: galore_adamw_8bit\noptim_args:\n  rank: 256\n", 1));
  EXPECT_EQ(galore.training.optimizer, OptimizerKind::kAdam8bit);
  EXPECT_EQ(galore.training.projection_rank, 256);
  const TrainingRun lisa =
      must_read(must_recipe(start + "lisa_n_layers: 4\nlisa_step_interval: 20\nlisa_layers_attribute: "
                                    "model.layers\n",
                            1));
  EXPECT_EQ(lisa.training.turns.layers, 4);
  EXPECT_TRUE(lisa.training.turns.others);
  EXPECT_THAT(warnings_of(must_recipe(start + "lisa_n_layers: 4\n", 1)), testing::Not(HasSubstr("not read")));
}

TEST(Trainer, ReadsTheRankInTheOptimizersArguments) {
  const RunKeys keys = must_recipe(
      "model_name_or_path: qwen3-4b\nper_device_train_batch_size: 1\nbf16: true\n"
      "optim: apollo_adamw\noptim_args: proj=random, rank = 1, scale=128.0\n"
      "optim_target_modules: [.*.attn.*, .*.mlp.*]\n",
      1);
  EXPECT_EQ(must_read(keys).training.projection_rank, 1);
  EXPECT_THAT(warnings_of(keys), testing::Not(HasSubstr("not read")));
}

TEST(Axolotl, AFlagIsTrueOrFalseOrOneOfItsWords) {
  const std::string recipe = "base_model: llama-3.1-8b\nsequence_len: 2048\nmicro_batch_size: 1\n";
  EXPECT_EQ(must_read(must_recipe(recipe + "bf16: full\n")).training.precision, Precision::kBf16);
  EXPECT_EQ(must_read(must_recipe(recipe + "bf16: no\n")).training.precision, Precision::kFp32);
  EXPECT_EQ(must_recipe(recipe + "activation_offloading: legacy\n").at("offload.activations"), "host");
  EXPECT_THAT(refusal(recipe + "bf16: maybe\n"),
              HasSubstr("bf16: 'maybe' is not allowed; allowed: true, false"));
}

TEST(Axolotl, ShardsAndOffloads) {
  const RunKeys keys = must_recipe(
      "base_model: llama-3.1-8b\nsequence_len: 4096\nmicro_batch_size: 1\nbf16: true\nfsdp_version: 2\n"
      "fsdp_config:\n  offload_params: true\n  activation_checkpointing: true\n",
      8);
  const TrainingRun run = must_read(keys);
  EXPECT_EQ(run.parallel.sharding, DataSharding::kParameters);
  EXPECT_EQ(run.parallel.world, 8);
  EXPECT_EQ(run.offload.optimizer, Tier::kHost);
  EXPECT_EQ(run.training.recompute, Recompute::kFull);
}

constexpr const char* kFactory = R"(
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: sft
do_train: true
finetuning_type: full
dataset: some_texts
template: qwen3_nothink
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
)";

TEST(LlamaFactory, TrainsFp32WeightsUnlessItIsPure) {
  TrainingRun run = must_read(must_recipe(std::string(kFactory) + "bf16: true\n"));
  EXPECT_TRUE(run.training.autocast);
  EXPECT_EQ(run.training.recompute, Recompute::kFull);
  run = must_read(
      must_recipe(std::string(kFactory) + "pure_bf16: true\ndisable_gradient_checkpointing: true\n"));
  EXPECT_FALSE(run.training.autocast);
  EXPECT_EQ(run.training.precision, Precision::kBf16);
  EXPECT_EQ(run.training.recompute, Recompute::kNone);
}

TEST(LlamaFactory, ReadsDeepspeedsFileAboveTheRecipe) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "factory";
  std::filesystem::create_directories(folder / "recipes/deep");
  std::ofstream(folder / "zero3.json") << R"({"train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3}})";
  const Result<RunKeys> keys = read_recipe(std::string(kFactory) + "bf16: true\ndeepspeed: zero3.json\n",
                                           {(folder / "recipes/deep").string(), 4, {}});
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  const TrainingRun run = must_read(keys.value());
  EXPECT_EQ(run.parallel.sharding, DataSharding::kParameters);
  EXPECT_EQ(run.communication.engine, DataParallelEngine::kDeepspeed);
  EXPECT_TRUE(run.training.mixed);  // 16-bit weights beside fp32 copies
  EXPECT_FALSE(run.training.autocast);
  EXPECT_EQ(run.training.micro_batch, 1);
  EXPECT_THAT(refusal(std::string(kFactory) + "deepspeed: nowhere.json\n"),
              HasSubstr("deepspeed: nowhere.json: cannot be read"));
}

TEST(LlamaFactory, RefusesOtherTasks) {
  EXPECT_THAT(refusal("model_name_or_path: qwen3-4b\ntemplate: qwen3\nstage: dpo\ndo_train: true\n"),
              HasSubstr("stage: 'dpo'"));
  EXPECT_THAT(refusal("model_name_or_path: qwen3-4b\ntemplate: qwen3\n"), HasSubstr("do_train"));
  EXPECT_THAT(refusal(std::string(kFactory) + "use_badam: true\nbadam_mode: ratio\n"),
              HasSubstr("badam_mode: not modelled"));
  EXPECT_THAT(refusal("model_name_or_path: qwen3-4b\nfinetuning_type: oft\ndo_train: true\n"),
              HasSubstr("finetuning_type: 'oft' is not modelled; allowed: full, lora"));
}

TEST(LlamaFactory, ReadsOptimizersThatHoldLess) {
  const std::string start =
      "model_name_or_path: qwen3-4b\nfinetuning_type: full\ndo_train: true\n"
      "pure_bf16: true\nstage: sft\n";
  const Training galore = must_read(must_recipe(start + "use_galore: true\ngalore_rank: 128\n", 1)).training;
  EXPECT_EQ(galore.projection_rank, 128);
  EXPECT_EQ(must_read(must_recipe(start + "use_apollo: true\n", 1)).training.projection_rank, 16);
  EXPECT_THAT(refusal(start + "use_apollo: true\nuse_badam: true\n"), HasSubstr("allowed: one of them"));
  EXPECT_THAT(refusal(start + "use_apollo: true\noptim: adafactor\n"),
              HasSubstr("optim: 'adafactor' is not allowed beside use_apollo"));
  EXPECT_THAT(warnings_of(must_recipe(start + "use_galore: true\ngalore_target: q_proj\n", 1)),
              HasSubstr("galore_target: 'q_proj': gradients of all matrices"));
  const Training badam =
      must_read(must_recipe(start + "use_badam: true\nbadam_switch_interval: 50\n", 1)).training;
  EXPECT_EQ(badam.turns.layers, 1);
  EXPECT_TRUE(badam.turns.fp32_copies);
}

TEST(LlamaFactory, SecondFormHasItsOwnSections) {
  const TrainingRun run = must_read(
      must_recipe("model: Qwen/Qwen3-0.6B\nmodel_class: llm\npeft_config:\n  name: lora\n  r: 16\n"
                  "  target_modules: all\nquant_config:\n  name: bnb\n  quantization_bit: 4\n"
                  "dist_config:\n  name: fsdp2\ntrain_dataset: a\nmicro_batch_size: 1\ncutoff_len: 1024\n"));
  EXPECT_EQ(run.training.adapter.rank, 16);
  EXPECT_TRUE(run.training.adapter.all_linear);
  EXPECT_TRUE(run.training.frozen.on());
}

constexpr const char* kTorchtune = R"(
output_dir: /tmp/out
model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 8192
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: True
batch_size: 2
gradient_accumulation_steps: 1
optimizer:
  _component_: bitsandbytes.optim.PagedAdamW8bit
  lr: 2e-5
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
optimizer_in_bwd: True
enable_activation_checkpointing: True
enable_activation_offloading: False
dtype: bf16
device: cuda
)";

TEST(Torchtune, ReadsFullFineTuning) {
  const TrainingRun run = must_read(must_recipe(kTorchtune, 1));
  EXPECT_EQ(run.framework, Framework::kPytorch);
  EXPECT_EQ(run.model.hidden, 4096);
  EXPECT_EQ(run.model.towers.back().sequence, 8192);
  EXPECT_EQ(run.training.optimizer, OptimizerKind::kAdam8bit);
  EXPECT_THAT(run.notes.warnings,
              testing::Contains(HasSubstr("PagedAdamW8bit: its states are counted on the device")));
  EXPECT_TRUE(run.training.step_in_backward);
  EXPECT_EQ(run.training.cross_entropy, CrossEntropy::kChunked);
  EXPECT_EQ(run.training.recompute, Recompute::kFull);
}

TEST(Torchtune, ReadsAdapters) {
  std::string text = kTorchtune;
  text.replace(text.find("llama3_1.llama3_1_8b"), 20,
               "qwen2_5.lora_qwen2_5_7b_instruct\n  lora_rank: 64\n"
               "  lora_attn_modules: ['q_proj', 'output_proj']");
  text.replace(text.find("max_seq_len: 8192"), 17, "max_seq_len: null");
  const RunKeys keys = must_recipe(text, 1);
  EXPECT_THAT(warnings_of(keys), HasSubstr("does not say how long its texts are"));
  EXPECT_EQ(keys.at("adapter.targets"), "q_proj,o_proj");
  EXPECT_EQ(keys.at("adapter.rank"), "64");
  EXPECT_EQ(must_read(keys).model.hidden, 3584);
  EXPECT_THAT(warnings_of(keys), HasSubstr("adapters are counted as transformers' code"));
}

TEST(Torchtune, RefusesOtherTasks) {
  EXPECT_THAT(refusal(std::string(kTorchtune) + "teacher_model:\n  _component_: x.y\n"),
              HasSubstr("a second model"));
  EXPECT_THAT(refusal("model:\n  _component_: torchtune.models.llama3.llama3_8b\n"),
              HasSubstr("nothing is trained"));
  std::string text = kTorchtune;
  text.replace(text.find("llama3_1_8b\n"), 11, "llama9_8b");
  EXPECT_THAT(refusal(text), HasSubstr("builds no model that is known"));
}

TEST(Automodel, ReadsDegreesAndAdapters) {
  const RunKeys keys = must_recipe(
      "step_scheduler:\n  local_batch_size: 4\nmodel:\n  _target_: nemo_automodel.NeMoAutoModelForCausalLM"
      ".from_pretrained\n  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B\npeft:\n"
      "  _target_: nemo_automodel.components._peft.lora.PeftConfig\n  target_modules: '*_proj'\n  dim: 8\n"
      "distributed:\n  strategy: fsdp2\n  dp_size: 8\n  activation_checkpointing: true\n"
      "optimizer:\n  _target_: torch.optim.Adam\ndataset:\n  seq_length: 2048\n");
  const TrainingRun run = must_read(keys);
  EXPECT_EQ(run.parallel.world, 8);
  EXPECT_EQ(run.parallel.sharding, DataSharding::kParameters);
  EXPECT_TRUE(run.training.adapter.all_linear);
  EXPECT_EQ(run.training.micro_batch, 4);
  EXPECT_EQ(run.model.towers.back().sequence, 2048);
}

TEST(Automodel, ThereAreAsManyGpusAsItIsDividedOver) {
  const RunKeys keys = must_recipe(
      "step_scheduler:\n  local_batch_size: 1\nmodel:\n  _target_: nemo_automodel.NeMoAutoModelForCausalLM"
      ".from_config\n  config: qwen3-30b-a3b\ndistributed:\n  tp_size: 4\n  pp_size: 2\n  ep_size: 8\n");
  EXPECT_EQ(must_read(keys).parallel.world, 16);
  EXPECT_THAT(warnings_of(keys), HasSubstr("16 counted"));
}

TEST(TrainingArguments, AreReadFromJsonToo) {
  const std::string text = R"({"model_name_or_path": "llama-3.2-1b", "output_dir": "out",
    "per_device_train_batch_size": 2, "bf16": true, "optim": "adamw_torch_fused", "max_length": 1024,
    "gradient_checkpointing": true, "fsdp": "full_shard auto_wrap", "use_the_moon": true})";
  EXPECT_TRUE(is_trainer_json(text));
  EXPECT_FALSE(is_trainer_json(R"({"model_type": "llama", "hidden_size": 64})"));
  EXPECT_FALSE(is_trainer_json(R"({"train_micro_batch_size_per_gpu": 1})"));
  const RunKeys keys = must_recipe(text, 2);
  const TrainingRun run = must_read(keys);
  EXPECT_TRUE(run.training.autocast);
  EXPECT_EQ(run.parallel.sharding, DataSharding::kParameters);
  EXPECT_EQ(run.training.micro_batch, 2);
  EXPECT_THAT(warnings_of(keys), HasSubstr("use_the_moon"));
  EXPECT_THAT(refusal("output_dir: a\nlearning_rate: 1\n"), HasSubstr("it names no model"));
}

TEST(Accelerate, SaysWhatIsSharded) {
  const char* const text =
      "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\n"
      "fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_offload_params: false\n";
  const Result<RunKeys> keys = read_recipe(text, {".", 0, llama32_3b()});
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  const TrainingRun run = must_read(keys.value());
  EXPECT_EQ(run.parallel.world, 4);
  EXPECT_EQ(run.parallel.sharding, DataSharding::kGradients);
  EXPECT_TRUE(run.training.autocast);
  EXPECT_THAT(refusal(text), HasSubstr("it names no model"));
  EXPECT_THAT(refusal("distributed_type: XLA\n"), HasSubstr("distributed_type: 'XLA' is not modelled"));
}

// Bytes changed, pieces cut out or doubled: each is answered, or refused in one line.
TEST(Recipes, DamagedOnesAreAnsweredOrRefusedInOneLine) {
  std::mt19937 random(7);
  const auto below = [&](size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); };
  constexpr std::string_view kBytes = ":-[]{}&*!|>'\"%@` \n\t019e.\xff";
  int answered = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = std::array{kAxolotl, kFactory, kTorchtune}[below(3)];
    for (size_t times = 1 + below(4); times > 0; --times) {
      const size_t at = below(text.size()), length = std::min(below(40), text.size() - at);
      switch (below(3)) {
        case 0:
          text[at] = kBytes[below(kBytes.size())];
          break;
        case 1:
          text.erase(at, length);
          break;
        default:
          text.insert(below(text.size()), text.substr(at, length));
      }
      if (text.empty()) text = "a: 1";
    }
    Result<RunKeys> keys = read_recipe(text, {".", 0, {}});
    Status status = keys.ok() ? read_run(keys.value()).status() : keys.take_status();
    if (status.ok()) ++answered;
    EXPECT_EQ(status.text().find('\n'), std::string::npos) << text << "\n" << status.text();
  }
  EXPECT_GT(answered, 100);
}

TEST(FlattenYaml, AliasesOfAliasesAreRefused) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    text += fmt::format("a{}: &a{} [", i, i);
    for (int j = 0; j < 10; ++j) text += fmt::format("{}*a{}", j == 0 ? "" : ", ", i - 1);
    text += "]\n";
  }
  EXPECT_THAT(flatten_yaml(text).status().text(), HasSubstr("values; allowed: what a person writes"));
}

TEST(Recipes, WhatIsNoneIsSaid) {
  EXPECT_THAT(refusal("a: 1\n"), HasSubstr("no recipe that is known; allowed:"));
}

TEST(NemoRl, FineTuningIsReadOverTheFileItBuildsOn) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "nemo";
  std::filesystem::create_directories(folder / "recipes");
  std::ofstream(folder / "sft.yaml")
      << "sft:\n  seed: 1\npolicy:\n  model_name: llama-3.2-1b\n  train_micro_batch_size: 1\n"
         "  max_total_sequence_length: 1024\n  precision: bfloat16\n  dtensor_cfg:\n    enabled: true\n"
         "    tensor_parallel_size: 1\n    lora_cfg:\n      enabled: false\n  optimizer:\n    name: "
         "torch.optim.AdamW\n";
  const auto read = [&](const std::string& text) {
    return read_recipe("defaults: ../sft.yaml\n" + text, {(folder / "recipes").string(), 0, {}});
  };
  const Result<RunKeys> keys =
      read("policy:\n  train_micro_batch_size: 4\ncluster:\n  gpus_per_node: 8\n  num_nodes: 2\n");
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  TrainingRun run = must_read(keys.value());
  EXPECT_EQ(run.training.micro_batch, 4);
  EXPECT_EQ(run.model.towers.back().sequence, 1024);
  EXPECT_EQ(run.parallel.world, 16);
  EXPECT_EQ(run.parallel.sharding, DataSharding::kParameters);
  const Result<RunKeys> megatron =
      read("policy:\n  megatron_cfg:\n    enabled: true\n    tensor_model_parallel_size: 2\n");
  ASSERT_TRUE(megatron.ok()) << megatron.status().text();
  run = must_read(megatron.value());
  EXPECT_EQ(run.framework, Framework::kMegatron);
  EXPECT_EQ(run.parallel.tensor, 2);
  EXPECT_THAT(refusal("policy:\n  model_name: llama-3.2-1b\ngrpo:\n  num_prompts_per_step: 1\n"),
              HasSubstr("reinforcement learning"));
  EXPECT_THAT(refusal("defaults: nowhere.yaml\n"), HasSubstr("nowhere.yaml: cannot be read"));
}

}  // namespace
}  // namespace spillway::estimator::test
