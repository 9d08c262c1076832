#include "estimator/inputs/run_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

constexpr const char* kModel =
    "[model]\nmodel_type = 'llama'\nhidden_size = 512\nintermediate_size = 1024\nnum_hidden_layers = 4\n"
    "num_attention_heads = 8\nvocab_size = 1000\n";

std::string complaint(const std::string& toml) {
  Result<RunKeys> keys = read_run_toml(toml, ".");
  if (!keys.ok()) return keys.status().text();
  Result<TrainingRun> run = read_run(keys.value());
  if (!run.ok()) return run.status().text();
  Result<Estimate> answer = estimate(run.value());
  return answer.ok() ? "" : answer.status().text();
}

TEST(RunFile, IsReadWithEveryDefaultEchoed) {
  Result<RunKeys> keys =
      read_run_toml(std::string(kModel) + "[train]\nmicro_batch = 2\nsequence = 256\n", ".");
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  Result<TrainingRun> run = read_run(keys.value());
  ASSERT_TRUE(run.ok()) << run.status().text();
  EXPECT_EQ(run->training.micro_batch, 2);
  EXPECT_EQ(run->model.towers.back().sequence, 256);
  const auto& assumed = run->notes.assumptions;
  for (const char* line :
       {"train.optimizer = adamw", "train.norm_in_fp32 = false", "model.num_key_value_heads = 8",
        "model.head_dim = 64", "model.tie_word_embeddings = false", "overhead.workspace = 32MiB"})
    EXPECT_EQ(std::count(assumed.begin(), assumed.end(), line), 1) << line;
  EXPECT_EQ(std::find(assumed.begin(), assumed.end(), "train.micro_batch = 1"), assumed.end());
}

struct Bad {
  const char* name;
  const char* section;
  const char* says;
};
class BadRunFile : public testing::TestWithParam<Bad> {};
TEST_P(BadRunFile, IsRefusedByNameAndValue) {
  EXPECT_EQ(complaint(std::string(kModel) + GetParam().section), GetParam().says);
}
INSTANTIATE_TEST_SUITE_P(
    Values, BadRunFile,
    testing::Values(
        Bad{"unknown_key", "[train]\nmicrobatch = 2\n",
            "train.microbatch: not known; allowed: the keys listed in docs/estimate.md; did you mean "
            "'train.micro_batch'?"},
        Bad{"negative", "[train]\nmicro_batch = -1\n",
            "train.micro_batch: '-1' is not allowed; allowed: whole numbers from 1 to 1048576"},
        Bad{"not_a_number", "[train]\ndropout = nan\n",
            "train.dropout: 'nan' is not allowed; allowed: numbers from 0 to 1"},
        Bad{"absurd", "[parallel]\ngpus = 99999999999\n",
            "parallel.gpus: '99999999999' is not allowed; allowed: whole numbers from 1 to 1048576"},
        Bad{"choice", "[train]\noptimizer = 'adamv'\n",
            "train.optimizer: 'adamv' is not allowed; allowed: adamw, adamw8bit, adamw4bit, adam-mini, "
            "adafactor, lion, "
            "muon, "
            "sgd-momentum, sgd, galore, galore8bit, galore-adafactor, apollo, badam; did you mean 'adamw'?"},
        Bad{"projection", "[train]\noptimizer_rank = 64\n",
            "train.optimizer_rank: not allowed beside train.optimizer 'adamw'; allowed: galore, galore8bit, "
            "galore-adafactor, apollo"},
        Bad{"projection_of_shards", "[train]\noptimizer = 'galore'\n[parallel]\ngpus = 8\nzero = 2\n",
            "train.optimizer 'galore': not modelled where ranks divide weights or states; allowed: "
            "parallel.gpus alone"},
        Bad{"projection_beside_an_adapter",
            "[train]\nframework = 'transformers'\noptimizer = 'apollo'\n[adapter]\nkind = 'lora'\n",
            "train.optimizer: 'apollo' is not allowed beside weights that are frozen for good"},
        Bad{"turns_of_lean_code", "[train]\nlayers_at_a_time = 2\n",
            "train.layers_at_a_time: '2' is not modelled here; allowed: beside what transformers' own code "
            "runs"},
        Bad{"twice", "[train]\nmicro_batch = 2\nbatch_size = 4\n",
            "train.micro_batch: says the same as train.batch_size; allowed: one of them"},
        Bad{"sizes", "[parallel]\ngpus = 8\ntensor = 3\n",
            "parallel.gpus: '8' is not allowed; allowed: multiples of parallel.tensor 3 x parallel.pipeline "
            "1 x "
            "parallel.context 1"},
        Bad{"heads", "[parallel]\ngpus = 16\ntensor = 16\n",
            "parallel.tensor: '16' is not allowed; allowed: divisors of 8 attention heads"},
        Bad{"layers", "[parallel]\ngpus = 3\npipeline = 3\n",
            "parallel.pipeline: '3' is not allowed; allowed: divisors of 4 layers"},
        Bad{"virtual_layers", "[parallel]\ngpus = 2\npipeline = 2\nvirtual_stages = 3\n",
            "parallel.pipeline 2 x parallel.virtual_stages 3: '6' is not allowed; allowed: divisors of 4 "
            "layers"},
        Bad{"virtual_alone", "[parallel]\nvirtual_stages = 2\n",
            "parallel.virtual_stages: '2' is not allowed; allowed: 1 beside parallel.pipeline 1"},
        Bad{"no_experts", "[parallel]\ngpus = 8\nexpert = 8\n",
            "parallel.expert: '8' is not allowed; allowed: 1 for a model without experts"},
        Bad{"replicas", "[parallel]\ngpus = 8\nreplicas = 3\n",
            "parallel.replicas: '3' is not allowed; allowed: divisors of 8 data-parallel ranks"},
        Bad{"segments", "[train]\nrecompute = 'full'\nrecompute_layers = 5\n",
            "train.recompute_layers: '5' is not allowed; allowed: whole numbers from 1 to 4"},
        Bad{"no_buffer", "[offload]\noptimizer = 'nvme'\nbuffer = 0\n",
            "offload.buffer: '0' is not allowed; allowed: sizes above 0"},
        Bad{"size_unit", "[overhead]\nextra = '2 cups'\n",
            "overhead.extra: '2 cups' is not allowed; allowed: sizes such as 512MiB, 2GiB"},
        Bad{"tier", "[offload]\noptimizer = 'disk'\n",
            "offload.optimizer: 'disk' is not allowed; allowed: device, host, nvme"},
        Bad{"no_tier", "[offload]\nbuffers = 2\n",
            "offload.buffers: not allowed where nothing is offloaded; allowed: beside optimizer, parameters "
            "or "
            "activations = host or nvme"},
        Bad{"framework", "[train]\nframework = 'megatron'\n[offload]\noptimizer = 'host'\n",
            "offload.optimizer: not allowed beside train.framework 'megatron'; allowed: pytorch"},
        Bad{"fp8_of_fp32", "[train]\nprecision = 'fp32'\nfp8 = 'mxfp8'\n",
            "train.fp8: not allowed beside train.precision 'fp32'; allowed: 16-bit precisions"},
        Bad{"step", "[train]\noptimizer_step = 'in-backward'\ngradient_accumulation = 2\n",
            "train.optimizer_step: 'in-backward' is not allowed beside train.gradient_accumulation; allowed: "
            "1"},
        Bad{"list", "[train]\nsequence = [1, 2]\n",
            "train.sequence: not allowed; allowed: a text, a number, true or false"}),
    [](const testing::TestParamInfo<Bad>& info) { return info.param.name; });

// A key of [model] that nothing is read from would change nothing, silently.
TEST(RunFile, RefusesAKeyOfTheModelThatIsNone) {
  EXPECT_EQ(complaint(std::string(kModel) + "num_key_value_head = 2\n"),
            "model.num_key_value_head: not known; allowed: the keys that give this type of model its size; "
            "did you mean "
            "'model.num_key_value_heads'?");
  EXPECT_EQ(complaint(std::string(kModel) + "num_key_value_heads = 2\n"), "");
}

TEST(RunFile, SaysWhereItIsNoToml) {
  EXPECT_EQ(complaint("[model\n").rfind("line 1: not TOML:", 0), 0u) << complaint("[model\n");
}

TEST(DeepSpeedFile, BecomesTheSameKeys) {
  Result<RunKeys> keys = read_deepspeed_json(
      R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
          "zero_optimization": {"stage": 3, "overlap_comm": true}})");
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  EXPECT_EQ(keys->at("parallel.zero"), "3");
  EXPECT_EQ(keys->at("train.micro_batch"), "4");
  EXPECT_EQ(keys->at("train.gradient_accumulation"), "2");
  EXPECT_EQ(keys->at("train.precision"), "bf16-mixed");
}

// Of all samples of a step, those on a rank, accumulation and ranks, any three give the fourth.
TEST(DeepSpeedFile, BatchSizesMultiplyUp) {
  const auto sizes = [](const char* json, int64_t gpus) -> std::string {
    Result<RunKeys> keys = read_deepspeed_json(json, gpus);
    if (!keys.ok()) return keys.status().text();
    return keys.value()["train.micro_batch"] + " x " + keys.value()["train.gradient_accumulation"] + " x " +
           keys.value()["parallel.gpus"];
  };
  EXPECT_EQ(sizes(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2})", 8), "2 x 4 x 8");
  EXPECT_EQ(sizes(R"({"train_batch_size": 64, "gradient_accumulation_steps": 2})", 8), "4 x 2 x 8");
  EXPECT_EQ(sizes(R"({"train_batch_size": 64})", 8), "8 x 1 x 8");
  EXPECT_EQ(sizes(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
                      "gradient_accumulation_steps": 4})",
                  0),
            "2 x 4 x 8");
  EXPECT_EQ(sizes(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2})", 8), "2 x  x ");
  EXPECT_EQ(
      sizes(R"({"train_batch_size": 17, "train_micro_batch_size_per_gpu": 2})", 8),
      "train_batch_size: '17' is not allowed; allowed: the product of train_micro_batch_size_per_gpu 2, "
      "gradient_accumulation_steps 1 and 8 GPUs");
}

TEST(DeepSpeedFile, SaysWhereBucketsAndTiersAre) {
  Result<RunKeys> keys = read_deepspeed_json(
      R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8, "allgather_bucket_size": 2e8,
          "overlap_comm": true, "offload_optimizer": {"device": "nvme", "nvme_path": "/x", "buffer_count": 5, "buffer_size": 1e8}},
          "activation_checkpointing": {"cpu_checkpointing": true, "number_checkpoints": 4}, "steps_per_print": 9})");
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  EXPECT_EQ(keys->at("communication.engine"), "deepspeed");
  EXPECT_EQ(std::stod(keys->at("communication.reduce_bucket_size")), 2e8);
  EXPECT_EQ(keys->at("communication.overlap_comm"), "true");
  EXPECT_EQ(keys->at("offload.optimizer"), "nvme");
  EXPECT_EQ(keys->at("offload.buffers"), "5");
  EXPECT_EQ(keys->at("offload.buffer"), "200000000");
  EXPECT_EQ(keys->at("offload.activations"), "host");
  EXPECT_EQ(keys->at("train.recompute"), "full");
  EXPECT_EQ(keys->at("train.checkpoints"), "4");
  must_estimate(must_read(with(llama32_3b(), keys.value())));
}

// As transformers' documentation writes such files.
TEST(DeepSpeedFile, LeavesToTheDefaultWhatATrainerFillsIn) {
  Result<RunKeys> keys = read_deepspeed_json(
      R"({"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3,
          "overlap_comm": null, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}})");
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  EXPECT_EQ(keys->count("train.precision") + keys->count("train.micro_batch"), 0u);
  const TrainingRun run = must_read(with(llama32_3b(), keys.value()));
  EXPECT_NE(
      std::find(run.notes.assumptions.begin(), run.notes.assumptions.end(), "train.precision = bf16-mixed"),
      run.notes.assumptions.end());
}

TEST(DeepSpeedFile, NamesWhatIsNotModelled) {
  const auto refused = [](const char* json) {
    Result<RunKeys> keys = read_deepspeed_json(json);
    return keys.ok() ? std::string() : keys.status().text();
  };
  EXPECT_EQ(
      refused(R"({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}})"),
      "zero_optimization.zero_hpz_partition_size is not modelled: a second copy of the weights is kept in "
      "each node");
  EXPECT_EQ(
      refused(R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})"),
      "zero_optimization.offload_param: not allowed below zero_optimization.stage 3; allowed: device none");
  EXPECT_EQ(refused(R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "disk"}}})"),
            "zero_optimization.offload_optimizer.device: 'disk' is not allowed; allowed: none, cpu, nvme");
  EXPECT_EQ(
      refused(R"({"optimizer": {"type": "OneBitAdam"}})"),
      "optimizer.type: 'OneBitAdam' is not modelled; allowed: Adam, AdamW, Lamb, Adagrad, Lion, Muon, SGD");
  EXPECT_EQ(
      refused(
          R"({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}})"),
      "compression_training.weight_quantization.shared_parameters.enabled is not modelled: weights are "
      "pruned or "
      "quantised");
  EXPECT_EQ(refused(R"({"moe": {"enabled": true, "ep_size": 4}})").rfind("moe.e", 0), 0u);
  EXPECT_EQ(refused(R"({"data_types": {"grad_accum_dtype": "fp8"}})"),
            "data_types.grad_accum_dtype: 'fp8' is not allowed; allowed: fp32, fp16, bf16");
  EXPECT_EQ(refused(R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})"),
            "bf16.bf16_optimizer_states: 'true' is not allowed without bf16.bf16_master_weights_and_grads");
}

TEST(DeepSpeedFile, SaysWhatIsKeptInSixteenBits) {
  const auto keys = [](const char* json) { return read_deepspeed_json(json).value(); };
  RunKeys half = keys(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                                   "bf16_optimizer_states": true}})");
  EXPECT_EQ(half["train.master_weights"] + half["train.optimizer_states"], "samesame");
  half = keys(R"({"fp16": {"enabled": true, "fp16_master_weights_and_grads": true}})");
  EXPECT_EQ(half["train.master_weights"] + half["train.optimizer_states"], "samesame");
  // Weights, gradients, copy and two moments of two bytes each.
  const TrainingRun run = must_read(with(llama32_3b(), half));
  const ElementBytes bytes = element_bytes(run.training, run.framework);
  EXPECT_EQ(bytes.weight + bytes.gradient + bytes.master + bytes.moments, 10);
  EXPECT_EQ(keys(R"({"data_types": {"grad_accum_dtype": "fp32"}})").at("train.gradients"), "fp32");
  EXPECT_EQ(keys(R"({"torch_autocast": {"enabled": true, "dtype": "torch.bfloat16"}})").at("train.precision"),
            "autocast");
  EXPECT_EQ(keys(R"({"bf16": {"enabled": true}, "torch_autocast": {"enabled": true}})").at("train.precision"),
            "bf16-mixed");
}

TEST(DeepSpeedFile, SaysHowSequencesAndMatricesAreDivided) {
  const RunKeys keys =
      read_deepspeed_json(R"({"sequence_parallel_size": 4, "tensor_parallel": {"autotp_size": 2}})").value();
  EXPECT_EQ(keys.at("parallel.context"), "4");
  EXPECT_EQ(keys.at("parallel.tensor"), "2");
}

TEST(DeepSpeedFile, SgdHasAStateOnlyWithMomentum) {
  const auto optimizer = [](const char* json) {
    return read_deepspeed_json(json).value().at("train.optimizer");
  };
  EXPECT_EQ(optimizer(R"({"optimizer": {"type": "SGD", "params": {"lr": 0.1}}})"), "sgd");
  EXPECT_EQ(optimizer(R"({"optimizer": {"type": "sgd", "params": {"momentum": 0.9}}})"), "sgd-momentum");
}

TEST(DeepSpeedFile, NamesKeysThatAreNone) {
  const auto warnings = [](const char* json) {
    return must_read(with(llama32_3b(), read_deepspeed_json(json).value())).notes.warnings;
  };
  EXPECT_EQ(
      warnings(
          R"({"gradient_acumulation_steps": 4, "zero_optimization": {"stage": 2, "overlap_com": true}})"),
      (std::vector<std::string>{
          "gradient_acumulation_steps: not a key of DeepSpeed's, which passes over it; did you mean "
          "'gradient_accumulation_steps'?",
          "zero_optimization.overlap_com: not a key of DeepSpeed's, which passes over it; did you mean "
          "'overlap_comm'?"}));
  EXPECT_EQ(warnings(R"({"communication_data_type": "fp32"})").size(), 1u);
  EXPECT_TRUE(
      warnings(R"({"gradient_clipping": 1.0, "wandb": {"enabled": true}, "steps_per_print": 10})").empty());
}

TEST(TorchtitanFile, BecomesTheSameKeys) {
  const std::string job =
      "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n"
      "[parallelism]\ntensor_parallel_degree = 2\n[activation_checkpoint]\nmode = 'full'\n";
  ASSERT_TRUE(is_torchtitan_toml(job));
  Result<RunKeys> keys = read_torchtitan_toml(job, 16);
  ASSERT_TRUE(keys.ok()) << keys.status().text();
  TrainingRun run = must_read(keys.value());
  EXPECT_EQ(total_parameters(run.model), 8030261248);
  EXPECT_EQ(run.parallel.data(), 8);
  EXPECT_EQ(run.parallel.sharding, DataSharding::kParameters);
  EXPECT_EQ(run.training.recompute, Recompute::kFull);
  EXPECT_EQ(run.training.micro_batch, 2);
  EXPECT_FALSE(read_torchtitan_toml("[model]\nname = 'llama3'\nflavor = '9B'\n[training]\n", 8).ok());
  EXPECT_FALSE(read_torchtitan_toml(job + "x = [", 8).ok());
  EXPECT_EQ(read_torchtitan_toml(job + "[optimizer]\nearly_step_in_backward = true\n", 8)
                ->at("train.optimizer_step"),
            "in-backward");
  std::string selective = job;
  selective.replace(selective.find("'full'"), 6, "'selective'\nselective_ac_option = 'op'");
  EXPECT_EQ(read_torchtitan_toml(selective, 8)->at("train.recompute"), "operators");
  EXPECT_TRUE(run.notes.warnings.empty());
  EXPECT_EQ(
      must_read(read_torchtitan_toml(job + "[compile]\nenable = true\n[training2]\nx = 3\n", 16).value())
          .notes.warnings,
      std::vector<std::string>{"compile.enable: not read: what it changes is not in the figures"});
  std::string converted = job;
  converted.replace(converted.find("flavor"), 0, "converters = ['float8']\n");
  EXPECT_EQ(read_torchtitan_toml(converted, 8).status().text(),
            "model.converters is not modelled: they replace linear layers; allowed: none");
  std::string offloaded = job;
  offloaded.replace(offloaded.find("seq_len"), 0, "enable_cpu_offload = true\n");
  must_estimate(must_read(read_torchtitan_toml(offloaded, 16).value()));
}

// Adding one thing changes one thing.
TEST(RunFile, EachKeyMovesItsOwnBucket) {
  const RunKeys base = with(llama32_3b(), {{"train.micro_batch", "2"}, {"train.sequence", "4096"}});
  const auto peak = [&](const RunKeys& more) {
    return must_estimate(must_read(with(base, more))).peak().peak_bytes;
  };
  const double before = peak({});
  EXPECT_LT(peak({{"train.loss", "fused-linear"}}), before);
  EXPECT_LT(peak({{"train.recompute", "full"}}), before);
  EXPECT_LT(peak({{"train.optimizer", "adamw8bit"}}), before);
  EXPECT_GT(peak({{"train.attention", "materialised"}}), before);
  EXPECT_GT(peak({{"train.micro_batch", "4"}}), before);
  EXPECT_NEAR(peak({{"overhead.extra", "1GiB"}}), before + (1 << 30), 1);
  EXPECT_NEAR(peak({{"overhead.extra", "2 GB"}}), before + 2e9, 1);
  EXPECT_LT(peak({{"parallel.gpus", "8"}, {"parallel.zero", "1"}}), before);
}

}  // namespace
}  // namespace spillway::estimator::test
