// Compares which layers a stage holds, and what is in flight there, with the schedules' own counts.
#include "estimator/stages.h"

#include <gtest/gtest.h>

namespace spillway::estimator {
namespace {

TrainingRun pipelined(int64_t layers, int64_t pipeline, int64_t virtual_stages, int64_t microbatches) {
  TrainingRun run;
  Tower tower;
  tower.layers.assign(static_cast<size_t>(layers), Layer{Mlp{.ffn = 8}});
  run.model.towers = {tower};
  run.parallel.pipeline = run.parallel.world = pipeline;
  run.parallel.virtual_stages = virtual_stages;
  run.training.microbatches = microbatches;
  return run;
}

int64_t layers_in_flight(const Stage& stage) {
  int64_t total = 0;
  for (const Chunk& chunk : stage.chunks) total += chunk.layers * chunk.in_flight;
  return total;
}

// 1F1B: the first stage holds about all layers whatever the number of stages.
TEST(Stages, HoldOneMicrobatchForEachStageBehindThem) {
  for (int64_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(layers_in_flight(pipeline_stage(pipelined(16, 4, 1, 32), rank)), 4 * (4 - rank));
  EXPECT_EQ(layers_in_flight(pipeline_stage(pipelined(16, 4, 1, 2), 0)), 8);
}

// Korthikanti et al., section 4.2.3: the first stage holds L (1 + (p - 1) / (p v)) layers.
TEST(Stages, InterleavedHoldThePapersShareOnTheFirst) {
  const int64_t pipeline = 4, virtual_stages = 3, layers = 24;
  const Stage stage = pipeline_stage(pipelined(layers, pipeline, virtual_stages, 64), 0);
  const double share = 1 + static_cast<double>(pipeline - 1) / (pipeline * virtual_stages);
  // Two more chunks than the paper: the schedule runs a forward pass ahead of the first backward pass.
  EXPECT_NEAR(static_cast<double>(layers_in_flight(stage)), layers * share,
              2.0 * layers / (pipeline * virtual_stages));
}

TEST(Stages, InterleavedLastRankHoldsAGroupOfEachChunkButTheLast) {
  const Stage stage = pipeline_stage(pipelined(12, 4, 3, 4), 3);
  ASSERT_EQ(stage.chunks.size(), 3u);
  EXPECT_EQ(stage.chunks[0].in_flight, 4);
  EXPECT_EQ(stage.chunks[1].in_flight, 4);
  EXPECT_EQ(stage.chunks[2].in_flight, 1);
  EXPECT_EQ(stage.chunks[0].first_layer, 3);
  EXPECT_EQ(stage.chunks[1].first_layer, 7);
}

TEST(Stages, FollowAnUnevenPlacement) {
  TrainingRun run = pipelined(9, 3, 1, 3);
  run.parallel.stage_layers = {2, 5, 2};
  EXPECT_EQ(pipeline_stage(run, 1).chunks.front().first_layer, 2);
  EXPECT_EQ(pipeline_stage(run, 1).chunks.front().layers, 5);
  EXPECT_TRUE(contradiction(run).empty());
  run.parallel.stage_layers = {2, 5, 3};
  EXPECT_EQ(contradiction(run), "10 layers are placed on stages, the model has 9");
}

}  // namespace
}  // namespace spillway::estimator
