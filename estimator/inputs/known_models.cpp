#include "estimator/inputs/known_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "estimator/inputs/nearest.h"

namespace spillway::estimator {
namespace {

// Keys that nearly every file has, by a letter; all others stand by their own names. `full=4` says that each
// fourth layer attends to all tokens; the others are linear, or have a window where the model is a Gemma.
struct Letter {
  std::string_view letter;
  std::string_view key;
};
constexpr std::array<Letter, 12> kLetters = {{{"h", "hidden_size"},
                                              {"f", "intermediate_size"},
                                              {"l", "num_hidden_layers"},
                                              {"a", "num_attention_heads"},
                                              {"k", "num_key_value_heads"},
                                              {"d", "head_dim"},
                                              {"v", "vocab_size"},
                                              {"p", "max_position_embeddings"},
                                              {"e", "num_experts"},
                                              {"t", "num_experts_per_tok"},
                                              {"m", "moe_intermediate_size"},
                                              {"tied", "tie_word_embeddings"}}};

// Parts that pipelines share; a word `name=@part` has its words under that name.
struct Part {
  std::string_view name;
  std::string_view words;
};
constexpr std::array<Part, 7> kParts = {
    {{"@clip-l",
      "model_type=clip_text_model architectures=[\"CLIPTextModel\"] hidden_size=768 intermediate_size=3072 "
      "num_hidden_layers=12 num_attention_heads=12 vocab_size=49408 max_position_embeddings=77 "
      "projection_dim=768 hidden_act=quick_gelu"},
     {"@clip-l-projected",
      "model_type=clip_text_model architectures=[\"CLIPTextModelWithProjection\"] hidden_size=768 "
      "intermediate_size=3072 num_hidden_layers=12 num_attention_heads=12 vocab_size=49408 "
      "max_position_embeddings=77 projection_dim=768 hidden_act=quick_gelu"},
     {"@clip-g",
      "model_type=clip_text_model architectures=[\"CLIPTextModelWithProjection\"] hidden_size=1280 "
      "intermediate_size=5120 num_hidden_layers=32 num_attention_heads=20 vocab_size=49408 "
      "max_position_embeddings=77 projection_dim=1280 hidden_act=gelu"},
     {"@clip-h",
      "model_type=clip_text_model architectures=[\"CLIPTextModel\"] hidden_size=1024 intermediate_size=4096 "
      "num_hidden_layers=23 num_attention_heads=16 vocab_size=49408 max_position_embeddings=77 "
      "projection_dim=512 hidden_act=gelu"},
     {"@t5-xxl",
      "model_type=t5 d_model=4096 d_ff=10240 num_layers=24 num_heads=64 d_kv=64 vocab_size=32128 "
      "feed_forward_proj=gated-gelu is_gated_act=true tie_word_embeddings=false n_positions=512"},
     {"@vae-4", "block_out_channels=[128,256,512,512] layers_per_block=2 latent_channels=4"},
     {"@vae-16",
      "block_out_channels=[128,256,512,512] layers_per_block=2 latent_channels=16 use_quant_conv=false "
      "use_post_quant_conv=false"}}};

// Endings of names that share their sizes.
constexpr std::array<std::string_view, 14> kEndings = {"-instruct", "-it",   "-chat", "-base",    "-deduped",
                                                       "-fp16",     "-hf",   "-pt",   "-2507",    "-0528",
                                                       "-2501",     "-v0.1", "-v0.2", "-thinking"};

std::string list_of_layers(std::string_view every, int64_t layers, std::string_view others) {
  int64_t step = 1;
  std::from_chars(every.data(), every.data() + every.size(), step);
  std::string out = "[";
  for (int64_t i = 1; i <= layers; ++i)
    out += fmt::format("{}\"{}\"", i == 1 ? "" : ",", i % step == 0 ? "full_attention" : others);
  return out + "]";
}

std::string in_small(std::string_view name) {
  std::string out(name);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string plain_name(std::string_view name) {
  std::string out = in_small(name.substr(name.rfind('/') + 1));
  // Owners of a family's first name write it twice ("meta-llama-3-8b").
  if (out.rfind("meta-llama", 0) == 0) out.erase(0, 5);
  // Stands before a version as well ("mistral-7b-instruct-v0.3").
  constexpr std::string_view kTuned = "-instruct";
  if (const size_t at = out.find(kTuned); at != std::string::npos) out.erase(at, kTuned.size());
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view ending : kEndings) {
      if (out.size() > ending.size() && out.ends_with(ending)) {
        out.resize(out.size() - ending.size());
        again = true;
      }
    }
  }
  return out;
}

}  // namespace

const KnownModel* find_known_model(std::string_view name) {
  const std::string wanted = plain_name(name);
  const std::string whole = in_small(name.substr(name.rfind('/') + 1));
  const std::vector<KnownModel>& models = known_models();
  // Where an ending changes the sizes after all, the model has a row with it.
  for (const KnownModel& model : models) {
    if (model.name == whole) return &model;
  }
  // A name of its own goes before one that an ending was taken from.
  for (const KnownModel& model : models) {
    if (model.name == wanted || model.repository == name) return &model;
  }
  for (const KnownModel& model : models) {
    if (plain_name(model.repository) == wanted || plain_name(model.name) == wanted) return &model;
  }
  return nullptr;
}

namespace {

// Words of the form key=value, each given to `add`.
template <typename Add>
void each_word(std::string_view words, Add add) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    const std::string_view word = words.substr(0, end);
    words.remove_prefix(std::min(words.size(), end + 1));
    const size_t equals = word.find('=');
    add(word.substr(0, equals), word.substr(equals + 1));
  }
}

void add_part(std::string_view name, std::string_view part, RunKeys& out) {
  const auto* const found =
      std::find_if(kParts.begin(), kParts.end(), [&](const Part& each) { return each.name == part; });
  if (found == kParts.end()) return;
  each_word(found->words, [&](std::string_view key, std::string_view value) {
    out[fmt::format("model.{}.{}", name, key)] = value;
  });
}

}  // namespace

RunKeys known_model_keys(const KnownModel& model) {
  RunKeys out;
  const size_t first = model.sizes.find(' ');
  const std::string_view type = model.sizes.substr(0, first);
  out[type.ends_with("Pipeline") ? "pipeline.class" : "model.model_type"] = type;
  std::string_view full;
  each_word(model.sizes.substr(first + 1), [&](std::string_view key, std::string_view value) {
    if (value.starts_with('@')) {
      add_part(key, value, out);
      return;
    }
    if (key == "full") {
      full = value;
      return;
    }
    for (const Letter& letter : kLetters) {
      if (key == letter.letter) key = letter.key;
    }
    out[fmt::format("model.{}", key)] = value;
  });
  if (!full.empty())
    out["model.layer_types"] =
        list_of_layers(full, std::stoll(out["model.num_hidden_layers"]),
                       type.starts_with("gemma") ? "sliding_attention" : "linear_attention");
  out["model.is_config_json"] = "true";
  if (model.source == SizesSource::kNone)
    add_warnings(
        {fmt::format("{}: sizes of this model were not checked against its config.json", model.name)}, out);
  return out;
}

std::string meant_model(const std::string& name) {
  std::vector<std::string_view> names;
  for (const KnownModel& model : known_models()) names.push_back(model.name);
  return did_you_mean(plain_name(name), names);
}

}  // namespace spillway::estimator
