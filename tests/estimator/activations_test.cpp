// Activations of one layer against Korthikanti et al., section 4 and table 2, and against sums made by hand.
#include "estimator/buckets/activations.h"

#include <gtest/gtest.h>

namespace spillway::estimator {
namespace {

constexpr double kMiB = 1 << 20;

double layer_mib(const TrainingRun& run) {
  std::vector<SavedTensor> tensors;
  const Tower& tower = run.model.towers.back();
  append_saved_tensors(run, tower, tower.layers.front(), 0, tensors);
  double bytes = 0;
  for (const SavedTensor& tensor : tensors) bytes += tensor.bytes;
  return bytes / kMiB;
}

TrainingRun gpt_layer(int64_t sequence, int64_t micro_batch, int64_t hidden, int64_t heads, int64_t tensor) {
  TrainingRun run;
  run.model.hidden = hidden;
  Tower tower;
  tower.sequence = sequence;
  tower.layers = {{Attention{.heads = heads,
                             .key_value_heads = heads,
                             .head_dim = hidden / heads,
                             .norm_parameters = 2 * hidden},
                   Mlp{.ffn = 4 * hidden, .norm_parameters = 2 * hidden}}};
  run.model.towers = {tower};
  run.parallel.tensor = tensor;
  run.training.micro_batch = micro_batch;
  run.training.hidden_dropout = run.training.attention_dropout = true;
  run.training.attention = AttentionKernel::kMaterialised;
  return run;
}

struct PaperRow {
  const char* name;
  int64_t micro_batch, hidden, heads;
  double tensor, sequence, selective, both, full;  // MiB of one layer, tensor-parallel size 8, 2048 tokens
};
class KorthikantiTable : public testing::TestWithParam<PaperRow> {};

TEST_P(KorthikantiTable, IsReproduced) {
  const PaperRow& row = GetParam();
  TrainingRun run = gpt_layer(2048, row.micro_batch, row.hidden, row.heads, 8);
  EXPECT_NEAR(layer_mib(run), row.tensor, 1e-6);
  run.training.modules.attention_core = true;
  EXPECT_NEAR(layer_mib(run), row.selective, 1e-6);
  run.parallel.sequence = true;
  EXPECT_NEAR(layer_mib(run), row.both, 1e-6);
  run.training.modules.attention_core = false;
  EXPECT_NEAR(layer_mib(run), row.sequence, 1e-6);
  run.parallel.sequence = false;
  EXPECT_NEAR(layer_input_bytes(run, run.model.towers.back()) / kMiB, row.full, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Models, KorthikantiTable,
                         testing::Values(PaperRow{"gpt22b", 4, 6144, 64, 1264, 844, 624, 204, 96},
                                         PaperRow{"gpt175b", 1, 12288, 96, 552, 342, 312, 102, 48},
                                         PaperRow{"gpt530b", 1, 20480, 128, 840, 490, 520, 170, 80},
                                         PaperRow{"gpt1t", 1, 25600, 160, 1050, 612.5, 650, 212.5, 100}),
                         [](const testing::TestParamInfo<PaperRow>& info) { return info.param.name; });

// 66 s b h + 9 a s^2 b where every element has four bytes and masks have one.
TEST(Fp32Layer, DoublesElementsAndNotMasks) {
  TrainingRun run = gpt_layer(512, 4, 1024, 16, 1);
  run.training.precision = Precision::kFp32;
  const double tokens = 512 * 4;
  EXPECT_NEAR(layer_mib(run) * kMiB, 66 * tokens * 1024 + 9 * 16.0 * 512 * 512 * 4, 1);
}

// An eager Llama layer with flash attention: T (12 h + 4 k d + 8 f + 4 a).
TEST(EagerGatedLayer, IsTheSumOfItsTensors) {
  TrainingRun run;
  run.framework = Framework::kPytorch;
  run.model.hidden = 3072;
  Tower tower;
  tower.sequence = 4096;
  tower.layers = {{Attention{.heads = 24, .key_value_heads = 8, .head_dim = 128, .norm_parameters = 3072},
                   Mlp{.ffn = 8192, .gated = true, .norm_parameters = 3072}}};
  run.model.towers = {tower};
  run.training.micro_batch = 2;
  EXPECT_NEAR(layer_mib(run) * kMiB, 8192.0 * (12 * 3072 + 4 * 8 * 128 + 8 * 8192 + 4 * 24), 1);
}

// Softmax of several kernels, heads of 52: three fp32 tensors of scores without the 16-bit probabilities,
// less the feed-forward that is gone by then, beside two gradients of the residual stream.
TEST(ScoreGradients, AreThreeCopiesWhereSoftmaxIsNotOneKernel) {
  TrainingRun run = gpt_layer(1601, 4, 624, 12, 1);
  const Tower& tower = run.model.towers.back();
  EXPECT_EQ(score_gradient_bytes(run, tower, tower.layers.front()), 0);
  run.training.hidden_dropout = false;
  run.training.score_copy_bytes = 4;
  const double tokens = 1601.0 * 4;
  const double scores = 12 * tokens * 1601;
  const double feed_forward = tokens * 624 * (2 + 2 + 2 * 4 + 2 * 4);
  EXPECT_NEAR(score_gradient_bytes(run, tower, tower.layers.front()),
              10 * scores - feed_forward + 2 * tokens * 2 * 624, 1);
}

// Padding: b s^2 for each layer; a causal mask only where softmax is not one kernel.
TEST(ScoreMasks, AreKeptByEachLayer) {
  TrainingRun run = gpt_layer(512, 4, 1024, 16, 2);
  const double without = layer_mib(run);
  run.behaviour.keeps_score_masks = true;
  EXPECT_EQ(layer_mib(run), without);
  std::get<Attention>(run.model.towers.back().layers.front().front()).mask = AttentionMask::kPadding;
  EXPECT_NEAR(layer_mib(run) - without, 4 * 512 * 512 / kMiB, 1e-9);
}

TEST(ContextParallelism, DividesTokensOnce) {
  TrainingRun run = gpt_layer(1024, 1, 512, 8, 1);
  run.training.attention = AttentionKernel::kFlash;
  const double whole = layer_mib(run);
  run.parallel.context = 4;
  EXPECT_NEAR(layer_mib(run), whole / 4, 1e-9);
}

// R (2 h + 6 f), and 8 bytes for each token and expert; R = T K.
TEST(Experts, KeepRoutedCopiesAtTheirOwnWidth) {
  TrainingRun run = gpt_layer(1024, 1, 512, 8, 1);
  run.training.hidden_dropout = false;
  run.model.towers.back().layers = {{Experts{.count = 8, .top_k = 2, .ffn = 256, .norm_parameters = 512}}};
  const double norms = 4.0 * 512 * 1024;
  const double routed = 1024 * 2 * (2.0 * 512 + 6 * 256) + 8.0 * 1024 * 8;
  EXPECT_NEAR(layer_mib(run) * kMiB, norms + routed, 1);
  run.training.expert_imbalance = 1.5;
  EXPECT_NEAR(layer_mib(run) * kMiB, norms + 1.5 * (routed - 8.0 * 1024 * 8) + 8.0 * 1024 * 8, 1);
  run.training.modules.expert_activation = true;
  EXPECT_NEAR(layer_mib(run) * kMiB, norms + 1.5 * 1024 * 2 * (2.0 * 512 + 2 * 256) + 8.0 * 1024 * 8, 1);
}

}  // namespace
}  // namespace spillway::estimator
