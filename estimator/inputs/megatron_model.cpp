#include <array>
#include <utility>

#include <fmt/format.h>

#include "estimator/inputs/megatron.h"
#include "estimator/inputs/patterns.h"

namespace spillway::estimator {
namespace {

// Widths and shapes that all layers of a model share.
class Shapes {
 public:
  explicit Shapes(KeyValues& values) : values_(values) {
    hidden = values.required("hidden-size");
    heads = values.required("num-attention-heads");
    gated = values.flag("swiglu");
    bias = !values.flag("disable-bias-linear");
    rms = values.choice("normalization", "LayerNorm", {"LayerNorm", "RMSNorm"}) == "RMSNorm";
    norm = rms ? hidden : 2 * hidden;
    // Megatron-LM, arguments.py: a gated unit has two thirds of the width, in multiples of 64.
    const int64_t usual = gated ? 4 * hidden * 2 / 3 / 64 * 64 : 4 * hidden;
    ffn = values.whole("ffn-hidden-size", usual);
    if (!values.has("kv-channels") && heads > 0 && hidden % heads != 0) {
      values.complain(fmt::format(
          "num-attention-heads: '{}' is not allowed; allowed: a divisor of hidden-size {}", heads, hidden));
    }
    head_dim = values.whole("kv-channels", std::max<int64_t>(1, hidden / std::max<int64_t>(1, heads)));
  }

  Attention attention() const {
    Attention out{heads, heads, head_dim};
    if (values_.flag("group-query-attention"))
      out.key_value_heads = values_.whole("num-query-groups", 1, 1, heads);
    out.query_key_value_bias = bias || values_.flag("add-qkv-bias");
    out.output_bias = bias;
    out.norm_parameters = norm;
    const int64_t norm_tables = rms ? 1 : 2;
    if (values_.flag("multi-latent-attention")) {
      out.latent =
          LatentAttention{values_.whole("q-lora-rank", 0, 0), values_.required("kv-lora-rank"),
                          values_.whole("qk-head-dim", 128), values_.whole("qk-pos-emb-head-dim", 64),
                          values_.whole("v-head-dim", 128)};
      out.head_norm_parameters = norm_tables * (out.latent->query_rank + out.latent->key_value_rank);
    } else if (values_.flag("qk-layernorm")) {
      out.head_norm_parameters = 2 * norm_tables * head_dim;
    }
    return out;
  }

  Mlp mlp() const { return {ffn, gated, bias, norm}; }

  Experts experts() const {
    Experts out;
    out.count = values_.whole("num-experts", 0, 0);
    out.top_k = values_.whole("moe-router-topk", 2);
    out.ffn = values_.whole("moe-ffn-hidden-size", ffn);
    out.shared_ffn = values_.whole("moe-shared-expert-intermediate-size", 0, 0);
    out.gated = gated;
    out.bias = bias;
    out.shared_gate = values_.flag("moe-shared-expert-gate");
    out.norm_parameters = norm;
    return out;
  }

  // Megatron-LM, mamba_mixer.py and its defaults in transformer_config.py.
  Mamba mamba() const {
    Mamba out;
    out.head_dim = values_.whole("mamba-head-dim", 64);
    out.heads = values_.whole("mamba-num-heads", std::max<int64_t>(1, 2 * hidden / out.head_dim));
    out.state = values_.whole("mamba-state-dim", 128);
    out.groups = values_.whole("mamba-num-groups", 8);
    out.norm_parameters = norm;
    return out;
  }

  int64_t hidden, heads, ffn, head_dim, norm;
  bool gated, bias, rms;

 private:
  KeyValues& values_;
};

// Entries of the tables that tokenizers bring, by the day from which the test data has them; a run may name
// its own with vocab-size.
struct Tokenizer {
  const char* type;
  const char* since;
  int64_t entries;
};
constexpr std::array<Tokenizer, 6> kTokenizers = {{{"GPT2BPETokenizer", "", 50257},
                                                   {"BertWordPieceCase", "", 28996},
                                                   {"BertWordPieceCase", "2025-08", 32128},
                                                   {"BertWordPieceLowerCase", "", 30522},
                                                   {"GPTSentencePieceTokenizer", "", 256000},
                                                   {"TikTokenizer", "", 131072}}};

std::string usual_tokenizer(const std::string& date, const std::string& program) {
  if (program != "bert") return "GPT2BPETokenizer";
  return date.empty() || date >= "2026" ? "BertWordPieceLowerCase" : "BertWordPieceCase";
}

int64_t vocabulary(KeyValues& values, const MegatronRun& given, const std::string& program) {
  const bool named = values.has("tokenizer-type");
  const std::string type = values.text("tokenizer-type", usual_tokenizer(given.date, program));
  const int64_t extra = values.whole("vocab-extra-ids", 0, 0);
  if (values.has("vocab-size")) {
    // The null tokenizer adds an end-of-document entry.
    return values.required("vocab-size", 1, KeyValues::kMostEntries) + (type == "NullTokenizer" ? 1 : 0) +
           extra;
  }
  const std::string date = given.date.empty() ? "9999" : named ? given.date : "";
  int64_t entries = 0;
  for (const Tokenizer& tokenizer : kTokenizers) {
    if (type == tokenizer.type && date >= tokenizer.since) entries = tokenizer.entries;
  }
  if (entries > 0) return entries + extra;
  values.complain(
      fmt::format("vocab-size: missing, and the table of {} is not known; allowed: its entries", type));
  return 1;
}

Layer transformer_layer(const Shapes& shapes, bool experts) {
  if (experts) return {shapes.attention(), shapes.experts()};
  return {shapes.attention(), shapes.mlp()};
}

Status fill_decoder(KeyValues& values, const Shapes& shapes, Tower& tower) {
  const int64_t layers = values.required("num-layers", 1, 10000);
  std::vector<bool> experts(static_cast<size_t>(layers), values.has("num-experts"));
  if (values.has("num-experts")) {
    Result<std::vector<bool>> parsed = parse_layer_frequency(values.text("moe-layer-freq", "1"), layers);
    if (!parsed.ok()) return parsed.take_status();
    experts = std::move(parsed.value());
  }
  const Layer plain = transformer_layer(shapes, false);
  const Layer routed = transformer_layer(shapes, true);
  for (const bool has_experts : experts) tower.layers.push_back(has_experts ? routed : plain);
  return {};
}

// One block for each letter: M a mixer, - a feed-forward, * attention, E experts; bars divide pipeline
// stages.
Status fill_hybrid(KeyValues& values, const Shapes& shapes, TrainingRun& run) {
  const std::string key =
      values.has("hybrid-layer-pattern") ? "hybrid-layer-pattern" : "hybrid-override-pattern";
  const std::string pattern = values.text(key, "");
  std::vector<Layer>& layers = run.model.towers.back().layers;
  for (const std::string& stage : split_stages(pattern)) {
    for (const char letter : stage) {
      switch (letter) {
        case 'M':
          layers.push_back({shapes.mamba()});
          break;
        case '-':
          layers.push_back({shapes.mlp()});
          break;
        case '*':
          layers.push_back({shapes.attention()});
          break;
        case 'E':
          layers.push_back({shapes.experts()});
          break;
        default:
          return Status::invalid_argument(
              fmt::format("{}: '{}' is not allowed; allowed: letters M, -, *, E and |", key, letter));
      }
    }
    if (pattern.find('|') != std::string::npos)
      run.parallel.stage_layers.push_back(static_cast<int64_t>(stage.size()));
  }
  if (layers.empty())
    return Status::invalid_argument(fmt::format("{}: missing; allowed: such as M-M*-", key));
  return {};
}

void set_mask(AttentionMask mask, Tower& tower) {
  for (Layer& layer : tower.layers) {
    for (Block& block : layer) {
      if (auto* attention = std::get_if<Attention>(&block)) attention->mask = mask;
    }
  }
}

void fill_bert(const Shapes& shapes, Model& model) {
  const int64_t h = shapes.hidden;
  set_mask(AttentionMask::kPadding, model.towers.back());
  model.token_types = 2;
  model.output_bias = true;
  // A dense layer and a norm before the output; a pooler and the next-sentence head.
  model.head_parameters = (h * h + h + 2 * h) + (h * h + h) + (2 * h + 2);
}

void fill_t5(KeyValues& values, const Shapes& shapes, Model& model) {
  Tower encoder{"encoder", values.whole("encoder-seq-length", values.whole("seq-length", 512))};
  const int64_t encoders =
      values.whole("encoder-num-layers", values.whole("num-layers", 12, 1, 10000), 1, 10000);
  for (int64_t i = 0; i < encoders; ++i) encoder.layers.push_back(transformer_layer(shapes, false));
  encoder.final_norm_parameters = shapes.norm;
  set_mask(AttentionMask::kPadding, encoder);
  Tower& decoder = model.towers.back();
  decoder.sequence = values.whole("decoder-seq-length", 128);
  const int64_t decoders = values.whole("decoder-num-layers", encoders, 1, 10000);
  Attention cross = shapes.attention();
  cross.cross = true;
  cross.mask = AttentionMask::kPadding;
  for (int64_t i = 0; i < decoders; ++i) decoder.layers.push_back({shapes.attention(), cross, shapes.mlp()});
  model.towers.insert(model.towers.begin(), std::move(encoder));
  model.output_bias = true;
}

// Megatron-LM, core/models/multimodal/context_parallel.py: tokens are divided evenly, over context-parallel
// ranks in two parts each.
int64_t padded_for_ranks(KeyValues& values, int64_t tokens) {
  constexpr int64_t kMostRanks = int64_t{1} << 20;
  const int64_t tensor =
      values.flag("sequence-parallel") ? values.whole("tensor-model-parallel-size", 1, 1, kMostRanks) : 1;
  const int64_t context = values.whole("context-parallel-size", 1, 1, kMostRanks);
  const int64_t multiple = tensor * (context > 1 ? 2 * context : 1);
  return (tokens + multiple - 1) / multiple * multiple;
}

// LLaVA (pretrain_vlm.py): a CLIP tower over patches and a class token, a two-layer projection, a decoder
// over text and image tokens.
Status fill_vlm(KeyValues& values, const Shapes& shapes, Model& model) {
  const int64_t patch = values.whole("patch-dim", 14);
  const int64_t patches = values.required("img-h") / patch * (values.required("img-w") / patch);
  const int64_t h = shapes.hidden;
  const bool class_token = !values.flag("disable-vision-class-token");
  Tower vision{"vision", patches + 1};
  vision.divided = false;
  const int64_t layers =
      values.whole("encoder-num-layers", values.whole("num-layers", 12, 1, 10000), 1, 10000);
  for (int64_t i = 0; i < layers; ++i) vision.layers.push_back(transformer_layer(shapes, false));
  set_mask(AttentionMask::kNone, vision);
  vision.input_parameters = 3 * patch * patch * h + (patches + 1) * h + h + 2 * h;
  Tower& decoder = model.towers.back();
  if (Status status = fill_decoder(values, shapes, decoder); !status.ok()) return status;
  decoder.sequence =
      values.whole("dataloader-seq-length", decoder.sequence) + patches + (class_token ? 1 : 0);
  decoder.sequence = padded_for_ranks(values, decoder.sequence);
  decoder.sharded_input_parameters = 2 * h * shapes.ffn + shapes.ffn;
  decoder.input_parameters = h;
  // Packed samples of a microbatch are one sequence to the language model.
  const bool packed = values.flag("use-packed-sequence") && values.whole("context-parallel-size", 1) > 1;
  model.positions = decoder.sequence * (packed ? values.required("micro-batch-size", 1, 1 << 20) : 1);
  model.tied = false;  // LLaVAModel's default, which the script leaves
  model.towers.insert(model.towers.begin(), std::move(vision));
  return {};
}

void add_prediction_layers(KeyValues& values, const Shapes& shapes, Model& model) {
  model.prediction_layers = values.whole("mtp-num-layers", 0, 0, 100);
  model.shares_predictions = values.flag("mtp-use-repeated-layer") && model.prediction_layers > 1;
  std::vector<Layer>& layers = model.towers.back().layers;
  for (int64_t i = 0; i < model.prediction_layers; ++i) {
    Layer layer = layers.back();
    if (i == 0) layer.insert(layer.begin(), PredictionInput{3 * shapes.norm});
    layers.push_back(std::move(layer));
  }
}

}  // namespace

Status read_megatron_model(KeyValues& values, const MegatronRun& given, const std::string& program,
                           TrainingRun& run) {
  Model& model = run.model;
  const Shapes shapes(values);
  if (Status status = values.status(); !status.ok()) return status;
  model.type = program;
  model.hidden = shapes.hidden;
  model.vocabulary = vocabulary(values, given, program);
  model.vocabulary_multiple = values.whole("make-vocab-size-divisible-by", 128);
  model.tied = !values.flag("untie-embeddings-and-output-weights");
  Tower decoder;
  decoder.sequence = values.whole("seq-length", 1024, 1, KeyValues::kMostEntries);
  decoder.final_norm_parameters = shapes.norm;
  const bool learned = !values.flag("use-rotary-position-embeddings") &&
                       values.text("position-embedding-type", "learned_absolute") == "learned_absolute";
  if (learned)
    model.positions = values.whole("max-position-embeddings", decoder.sequence, 1, KeyValues::kMostEntries);
  model.towers = {std::move(decoder)};
  Status filled;
  if (program == "t5") {
    fill_t5(values, shapes, model);
  } else if (program == "hybrid") {
    filled = fill_hybrid(values, shapes, run);
  } else if (program == "vlm") {
    filled = fill_vlm(values, shapes, model);
  } else {
    filled = fill_decoder(values, shapes, model.towers.back());
    if (program == "bert") fill_bert(shapes, model);
  }
  if (filled.ok()) add_prediction_layers(values, shapes, model);
  return filled.ok() ? values.status() : std::move(filled);
}

}  // namespace spillway::estimator
