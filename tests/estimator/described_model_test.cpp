#include "estimator/inputs/described_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

constexpr const char* kTwo =
    "let h hidden_size\nhidden h\nvocabulary vocab_size\ntied 0\nbias 1\ntower decoder 128\ninput 10\nnorm "
    "h\n"
    "layers 2\nattention heads=4 kv=2 norm=h\nmixer matrix=7*h other=5 norm=h saved=3 if layer==1\n"
    "mlp ffn=32 gated=1\nclass ForCausalLM 0 vocabulary\nclass ForSequenceClassification labels*h\nclass "
    "Model 0\n";

Model described(const char* description, const std::map<std::string, std::string>& more, Notes& notes) {
  std::map<std::string, std::string> keys = {{"model.hidden_size", "16"}, {"model.vocab_size", "100"}};
  keys.insert(more.begin(), more.end());
  KeyValues values(keys);
  Model model = read_described(values, "model.", description, notes);
  EXPECT_TRUE(values.status().ok()) << values.status().text();
  return model;
}

TEST(DescribedModel, IsTheSumOfItsLines) {
  Notes notes;
  const Model model = described(kTwo, {}, notes);
  const int64_t layer = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 16 + 3 * 16 * 32;
  EXPECT_EQ(total_parameters(model), 2 * 1600 + 100 + 10 + 16 + 2 * layer + 7 * 16 + 5 + 16);
  EXPECT_EQ(model.towers.back().layers[0].size(), 2u);
  EXPECT_EQ(model.towers.back().layers[1].size(), 3u);
  EXPECT_TRUE(notes.warnings.empty());
}

TEST(DescribedModel, HasTheHeadOfItsClass) {
  Notes notes;
  const int64_t usual = total_parameters(described(kTwo, {}, notes));
  const int64_t none =
      total_parameters(described(kTwo, {{"model.architectures", R"(["SomeModel"])"}}, notes));
  EXPECT_EQ(usual - none, 1600 + 100);
  const std::map<std::string, std::string> classifier = {
      {"model.architectures", R"(["SomeForSequenceClassification"])"},
      {"model.id2label.0", "a"},
      {"model.id2label.1", "b"},
      {"model.id2label.2", "c"}};
  EXPECT_EQ(total_parameters(described(kTwo, classifier, notes)) - none, 3 * 16);
  EXPECT_TRUE(notes.warnings.empty());
  EXPECT_EQ(total_parameters(described(kTwo, {{"model.architectures", R"(["SomeForDancing"])"}}, notes)),
            usual);
  EXPECT_EQ(notes.warnings.size(), 1u);
}

TEST(DescribedModel, RefusesWhatItsDescriptionRefuses) {
  KeyValues values({{"model.hidden_size", "16"}, {"model.odd", "3"}});
  Notes notes;
  read_described(values, "model.",
                 "hidden hidden_size\nrefuse odd:0 odd\ntower decoder 8\nlayers 1\nmlp ffn=4\n", notes);
  EXPECT_EQ(values.status().text(), "model.odd: '3' is not modelled for this type");
}

TEST(DescribedModel, WithoutLayersIsRefused) {
  KeyValues values({{"model.hidden_size", "16"}, {"model.n", "0"}});
  Notes notes;
  read_described(values, "model.", "hidden hidden_size\ntower decoder 8\nlayers n\nmlp ffn=4\n", notes);
  EXPECT_FALSE(values.status().ok());
}

TEST(DescribedModel, OfMoreLayersThanAnyIsRefused) {
  KeyValues values({{"model.hidden_size", "16"}, {"model.n", "100000"}});
  Notes notes;
  read_described(values, "model.", "hidden hidden_size\ntower decoder 8\nlayers n\nmlp ffn=4\n", notes);
  EXPECT_EQ(values.status().text(), "model.n: '100000' is not allowed; allowed: up to 10000 layers");
}

// An encoder of a fixed length keeps it; the decoder has the run's.
TEST(DescribedModel, TowersMayHaveALengthOfTheirOwn) {
  const RunKeys whisper = {{"model.model_type", "whisper"},
                           {"model.d_model", "384"},
                           {"model.num_mel_bins", "80"},
                           {"model.encoder_layers", "4"},
                           {"model.decoder_layers", "4"},
                           {"model.encoder_attention_heads", "6"},
                           {"model.decoder_attention_heads", "6"},
                           {"model.encoder_ffn_dim", "1536"},
                           {"model.decoder_ffn_dim", "1536"},
                           {"model.vocab_size", "51865"},
                           {"train.sequence", "128"}};
  const TrainingRun run = must_read(whisper);
  EXPECT_EQ(total_parameters(run.model), 37760640);
  EXPECT_EQ(run.model.towers.front().sequence, 1500);
  EXPECT_EQ(run.model.towers.back().sequence, 128);
  must_estimate(run);
}

TEST(DescribedModel, OfImagesHasTheTokensOfAnImage) {
  RunKeys vit = {{"model.model_type", "vit"},         {"model.hidden_size", "768"},
                 {"model.num_hidden_layers", "12"},   {"model.num_attention_heads", "12"},
                 {"model.intermediate_size", "3072"}, {"model.image_size", "224"},
                 {"model.patch_size", "16"}};
  const TrainingRun run = must_read(vit);
  EXPECT_EQ(total_parameters(run.model), 85800194);
  EXPECT_EQ(run.model.towers.back().sequence, 197);
  must_estimate(run);
  vit["train.sequence"] = "512";
  EXPECT_EQ(read_run(vit).status().text(),
            "train.sequence: '512' is not allowed; allowed: the 197 tokens that the model's samples have");
}

TEST(DescribedModel, EveryTypeIsDescribedOnce) {
  std::vector<std::string_view> types = described_types();
  std::sort(types.begin(), types.end());
  EXPECT_EQ(std::adjacent_find(types.begin(), types.end()), types.end());
  for (const std::string_view type : types) EXPECT_FALSE(find_description(type).empty()) << type;
  EXPECT_TRUE(find_description("newcomer").empty());
  EXPECT_TRUE(find_description("").empty());
}

}  // namespace
}  // namespace spillway::estimator::test
