#include "estimator/inputs/diffusers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "estimator/diffusion/pipeline.h"
#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/hugging_face_code.h"
#include "estimator/inputs/json_object.h"

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kUNet = "UNet2DConditionModel";
constexpr std::string_view kFlux = "FluxTransformer2DModel";
constexpr std::string_view kStableDiffusion3 = "SD3Transformer2DModel";
constexpr std::array kTextEncoders = {"text_encoder", "text_encoder_2", "text_encoder_3"};
// What read_model_json() writes begins with "model.".
constexpr const char* kPipelineKey = "pipeline.class";
// Pipelines that call their denoiser once for each image, or twice with guidance.
constexpr std::array<std::string_view, 11> kPlain = {
    {"StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline",
     "StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline",
     "StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline", "FluxPipeline", "FluxImg2ImgPipeline",
     "LatentConsistencyModelPipeline"}};
constexpr int64_t kMostRepeats = 1000;
constexpr int64_t kMostTransformers = 10000;  // of a UNet
constexpr int64_t kMostPixels = 1 << 15;

bool is_denoiser(const std::string& type) {
  const std::vector<std::string_view> types = denoiser_types();
  return std::find(types.begin(), types.end(), type) != types.end();
}

// Weights that were written by Flax have the sizes of PyTorch's.
std::string plain_class(std::string name) {
  if (name.rfind("Flax", 0) == 0) name.erase(0, 4);
  return name;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Result<Json> read_part(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return Status::invalid_argument(fmt::format("{}: cannot be read; allowed: a part's config.json", path));
  std::ostringstream text;
  text << file.rdbuf();
  Result<Json> root = read_json_object(text.str());
  if (!root.ok()) return Status::invalid_argument(fmt::format("{}: {}", path, root.status().text()));
  return root;
}

void add_part(const Json& part, const std::string& name, RunKeys& out) {
  for (const auto& [key, value] : part.items()) out[fmt::format("model.{}.{}", name, key)] = text_of(value);
}

// The numbers of "[1, 2]", or of one number; empty where it is neither.
std::vector<int64_t> numbers_of(const std::string& text) {
  std::vector<int64_t> out;
  const bool is_list = !text.empty() && text.front() == '[' && text.back() == ']';
  const char* at = text.data() + (is_list ? 1 : 0);
  const char* const end = text.data() + text.size() - (is_list ? 1 : 0);
  while (at < end) {
    while (at < end && *at == ' ') ++at;
    int64_t number = 0;
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error != std::errc()) return {};
    out.push_back(number);
    at = rest;
    while (at < end && (*at == ' ' || *at == ',')) ++at;
    if (!is_list && at != end) return {};
  }
  return out;
}

std::vector<std::string> names_of(const std::string& list) {
  std::vector<std::string> out;
  for (size_t from = list.find('"'); from != std::string::npos;) {
    const size_t to = list.find('"', from + 1);
    if (to == std::string::npos) break;
    out.push_back(list.substr(from + 1, to - from - 1));
    from = list.find('"', to + 1);
  }
  return out;
}

// Keys of one part's file, in which null says nothing.
class PartReader {
 public:
  PartReader(KeyValues& values, const std::string& part) : values_(values), prefix_("model." + part + ".") {}

  bool says(const std::string& key) const {
    const std::string text = values_.peek(prefix_ + key);
    return !text.empty() && text != "null";
  }
  std::string text(const std::string& key) { return says(key) ? values_.text(prefix_ + key, "") : ""; }
  int64_t whole(const std::string& key, int64_t otherwise, int64_t most = KeyValues::kMost,
                int64_t least = 1) {
    return says(key) ? values_.whole(prefix_ + key, otherwise, least, most) : otherwise;
  }
  bool truth(const std::string& key, bool otherwise) {
    return says(key) ? values_.truth(prefix_ + key, otherwise) : otherwise;
  }
  std::vector<std::string> names(const std::string& key, std::vector<std::string> otherwise) {
    return says(key) ? names_of(text(key)) : std::move(otherwise);
  }

  // Whole numbers from 1; `count` of them where that is not 0, of which one stands for all.
  std::vector<int64_t> numbers(const std::string& key, std::vector<int64_t> otherwise, int64_t most,
                               size_t count = 0) {
    std::vector<int64_t> out = says(key) ? numbers_of(text(key)) : std::move(otherwise);
    const bool allowed = !out.empty() && std::all_of(out.begin(), out.end(), [&](int64_t number) {
      return number >= 1 && number <= most;
    });
    if (!allowed) complain(key, fmt::format("whole numbers from 1 to {}, or a list of them", most));
    for (int64_t& number : out) number = std::clamp<int64_t>(number, 1, most);
    if (out.size() == 1 && count > 0) out.resize(count, out.front());
    if (allowed && count > 0 && out.size() != count)
      complain(key, fmt::format("{} numbers, one for each level", count));
    out.resize(std::max<size_t>(count, std::max<size_t>(1, out.size())), 1);
    return out;
  }

  // What changes sizes and is not modelled.
  void only(const std::string& key, std::initializer_list<std::string_view> allowed) {
    const std::string said = text(key);
    if (said.empty() || std::find(allowed.begin(), allowed.end(), said) != allowed.end()) return;
    values_.complain(
        fmt::format("{}: '{}' is not modelled; allowed: {}", name(key), said, fmt::join(allowed, ", ")));
  }
  void none(const std::string& key) {
    if (!text(key).empty())
      values_.complain(fmt::format("{}: '{}' is not modelled; allowed: null", name(key), text(key)));
  }
  void complain(const std::string& key, const std::string& allowed) {
    values_.complain(fmt::format("{}: '{}' is not allowed; allowed: {}", name(key), text(key), allowed));
  }

 private:
  // As the part's folder and file have it.
  std::string name(const std::string& key) const { return prefix_.substr(6) + key; }

  KeyValues& values_;
  std::string prefix_;
};

void check_unet(PartReader& part) {
  part.only("dual_cross_attention", {"false"});
  part.only("only_cross_attention", {"false"});
  part.only("time_embedding_type", {"positional"});
  part.only("resnet_time_scale_shift", {"default"});
  part.only("resnet_skip_time_act", {"false"});
  part.only("attention_type", {"default"});
  part.only("addition_embed_type", {"text_time"});
  part.only("encoder_hid_dim_type", {"text_proj"});
  part.only("mid_block_type", {"UNetMidBlock2DCrossAttn"});
  part.only("conv_in_kernel", {"3"});
  part.only("conv_out_kernel", {"3"});
  part.only("downsample_padding", {"1"});
  part.only("dropout", {"0", "0.0"});
  for (const char* key :
       {"num_attention_heads", "class_embed_type", "num_class_embeds", "cross_attention_norm",
        "reverse_transformer_layers_per_block", "time_embedding_act_fn", "timestep_post_act"})
    part.none(key);
}

UNet read_unet(KeyValues& values, const std::string& name) {
  PartReader part(values, name);
  check_unet(part);
  UNet out;
  const std::vector<int64_t> channels =
      part.numbers("block_out_channels", {320, 640, 1280, 1280}, KeyValues::kMost);
  const size_t count = channels.size();
  const std::vector<std::string> down =
      part.names("down_block_types",
                 {"CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"});
  const std::vector<std::string> up = part.names(
      "up_block_types", {"UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"});
  if (count > 16) part.complain("block_out_channels", "up to 16 levels");
  if (down.size() != count) part.complain("down_block_types", fmt::format("{} names", count));
  if (up.size() != count) part.complain("up_block_types", fmt::format("{} names", count));
  const std::vector<int64_t> blocks = part.numbers("layers_per_block", {2}, kMostRepeats, count);
  const std::vector<int64_t> heads = part.numbers("attention_head_dim", {8}, KeyValues::kMost, count);
  const std::vector<int64_t> widths = part.numbers("cross_attention_dim", {1280}, KeyValues::kMost, count);
  const std::vector<int64_t> layers = part.numbers("transformer_layers_per_block", {1}, kMostRepeats, count);
  out.groups = part.whole("norm_num_groups", 32);
  for (size_t i = 0; i < std::min({count, down.size(), up.size()}); ++i) {
    const std::string& upwards = up[up.size() - 1 - i];
    if (down[i] != "DownBlock2D" && down[i] != "CrossAttnDownBlock2D")
      part.complain("down_block_types", "DownBlock2D, CrossAttnDownBlock2D");
    if (upwards != "UpBlock2D" && upwards != "CrossAttnUpBlock2D")
      part.complain("up_block_types", "UpBlock2D, CrossAttnUpBlock2D");
    if (channels[i] % heads[i] != 0)
      part.complain("attention_head_dim", fmt::format("divisors of {} channels", channels[i]));
    if (channels[i] % out.groups != 0)
      part.complain("norm_num_groups", fmt::format("divisors of {} channels", channels[i]));
    out.levels.push_back({channels[i], blocks[i], down[i] == "CrossAttnDownBlock2D" ? layers[i] : 0,
                          upwards == "CrossAttnUpBlock2D" ? layers[i] : 0, heads[i], widths[i]});
  }
  int64_t transformers = 0;
  for (const UNetLevel& level : out.levels)
    transformers += level.blocks * level.transformers + (level.blocks + 1) * level.up_transformers;
  if (transformers > kMostTransformers)
    part.complain("transformer_layers_per_block", fmt::format("up to {} layers together", kMostTransformers));
  out.has_middle = values.peek(fmt::format("model.{}.mid_block_type", name)) != "null";
  out.middle_transformers = layers.back();
  out.in_channels = part.whole("in_channels", 4);
  out.out_channels = part.whole("out_channels", 4);
  out.linear_projection = part.truth("use_linear_projection", false);
  out.time_width = part.whole("time_embedding_dim", 4 * channels.front());
  if (part.text("addition_embed_type") == "text_time")
    out.added_width = part.whole("projection_class_embeddings_input_dim", 2816);
  out.text_projection = part.whole("encoder_hid_dim", 0);
  out.guidance_width = part.whole("time_cond_proj_dim", 0);
  return out;
}

ImageTransformer read_image_transformer(KeyValues& values, const std::string& name, bool rotary) {
  PartReader part(values, name);
  ImageTransformer out;
  out.rotary = rotary;
  out.heads = part.whole("num_attention_heads", rotary ? 24 : 18);
  out.head_dim = part.whole("attention_head_dim", rotary ? 128 : 64, 1 << 16);
  out.layers = part.whole("num_layers", rotary ? 19 : 18, kMostRepeats);
  out.in_channels = part.whole("in_channels", rotary ? 64 : 16);
  out.out_channels = part.whole("out_channels", out.in_channels);
  out.patch = part.whole("patch_size", rotary ? 1 : 2, 64);
  out.text_width = part.whole("joint_attention_dim", 4096);
  out.pooled_width = part.whole("pooled_projection_dim", rotary ? 768 : 2048);
  if (out.heads * out.head_dim > KeyValues::kMost) {
    part.complain("num_attention_heads", fmt::format("up to {} channels together", KeyValues::kMost));
    return out;
  }
  if (rotary) {
    out.single_layers = part.whole("num_single_layers", 38, kMostRepeats, 0);
    out.guidance = part.truth("guidance_embeds", false);
    return out;
  }
  out.head_norms = part.says("qk_norm");
  part.only("qk_norm", {"rms_norm"});
  const std::string dual = part.text("dual_attention_layers");
  out.second_attention.resize(static_cast<size_t>(out.layers));
  const std::vector<int64_t> second = numbers_of(dual);
  const bool in_range = std::all_of(second.begin(), second.end(),
                                    [&](int64_t layer) { return layer >= 0 && layer < out.layers; });
  if ((second.empty() && !dual.empty() && dual != "[]") || !in_range)
    part.complain("dual_attention_layers", fmt::format("a list of layers from 0 to {}", out.layers - 1));
  for (const int64_t layer : second) {
    if (layer >= 0 && layer < out.layers) out.second_attention[static_cast<size_t>(layer)] = true;
  }
  out.position_side = part.whole("pos_embed_max_size", 96, 1 << 14);
  const int64_t width = part.whole("caption_projection_dim", 1152);
  if (width != out.heads * out.head_dim)
    part.complain("caption_projection_dim",
                  fmt::format("the width of the layers, {}", out.heads * out.head_dim));
  return out;
}

ImageCoder read_coder(KeyValues& values) {
  PartReader part(values, "vae");
  ImageCoder out;
  out.channels = part.numbers("block_out_channels", {64}, KeyValues::kMost);
  if (out.channels.size() > 8) {
    part.complain("block_out_channels", "up to 8 levels");
    out.channels.resize(8);
  }
  out.groups = part.whole("norm_num_groups", 32);
  for (const int64_t channels : out.channels) {
    if (channels % out.groups != 0)
      part.complain("norm_num_groups", fmt::format("divisors of {} channels", channels));
  }
  out.in_channels = part.whole("in_channels", 3);
  if (part.whole("out_channels", out.in_channels) != out.in_channels)
    part.complain("out_channels", fmt::format("as many as come in, {}", out.in_channels));
  out.latent_channels = part.whole("latent_channels", 4);
  out.blocks = part.whole("layers_per_block", 1, kMostRepeats);
  out.middle_attention = part.truth("mid_block_add_attention", true);
  out.projects_in = part.truth("use_quant_conv", true);
  out.projects_out = part.truth("use_post_quant_conv", true);
  for (const char* key : {"down_block_types", "up_block_types"}) {
    for (const std::string& name : part.names(key, {})) {
      if (name != "DownEncoderBlock2D" && name != "UpDecoderBlock2D")
        part.complain(key, "DownEncoderBlock2D, UpDecoderBlock2D");
    }
  }
  return out;
}

// Of T5 the encoder alone, whose last products of feed-forward blocks transformers keeps in fp32 beside fp16
// (modeling_t5.py, _keep_in_fp32_modules).
void drop_decoder(TextEncoder& encoder) {
  Model& model = encoder.model;
  if (model.towers.size() < 2) return;
  model.towers.resize(1);
  model.vocabulary_head = false;
  model.tied = true;
  model.head_parameters = 0;
  for (const Layer& layer : model.towers.front().layers) {
    for (const Block& block : layer) {
      if (const auto* mlp = std::get_if<Mlp>(&block)) encoder.fp32_elements += mlp->ffn * model.hidden;
    }
  }
}

Status add_encoders(KeyValues& values, Pipeline& pipeline, Notes& notes) {
  for (const char* name : kTextEncoders) {
    const std::string prefix = fmt::format("model.{}.", name);
    if (!values.has_any(prefix)) continue;
    const bool is_t5 = values.peek(prefix + "model_type").find("t5") != std::string::npos;
    Notes of_part;
    Result<Model> model = read_hugging_face(values, prefix, of_part);
    if (!model.ok()) return {model.status().code(), fmt::format("{}: {}", name, model.status().text())};
    TextEncoder encoder;
    encoder.model = std::move(model.value());
    if (is_t5) drop_decoder(encoder);
    encoder.code = read_code(values, prefix, encoder.model);
    // Nobody trains it.
    encoder.code.hidden_dropout = encoder.code.attention_dropout = encoder.code.embedding_dropout = 0;
    const auto* transformer = std::get_if<ImageTransformer>(&pipeline.denoiser);
    const bool rotary = transformer != nullptr && transformer->rotary;
    encoder.tokens = !is_t5 ? 77 : rotary ? 512 : 256;
    if (!is_t5)
      for (const std::string& warning : of_part.warnings)
        notes.warnings.push_back(fmt::format("{}: {}", name, warning));
    pipeline.encoders.push_back(std::move(encoder));
  }
  return {};
}

// Whole pixels of both sides, as "1024" or "1024x768".
void read_resolution(KeyValues& values, const std::string& key, TrainingRun& run) {
  const Pipeline& pipeline = *run.model.pipeline;
  const int64_t factor = pipeline.coder ? pipeline.coder->factor() : 8;
  const auto* transformer = std::get_if<ImageTransformer>(&pipeline.denoiser);
  const int64_t step =
      transformer == nullptr ? factor : factor * (transformer->rotary ? 2 : transformer->patch);
  int64_t most = kMostPixels;
  if (transformer != nullptr && transformer->position_side > 0)
    most = std::min(most, transformer->position_side * step);
  run.imaging.width = run.imaging.height = std::max(step, std::min(pipeline.pixels, most) / step * step);
  if (!values.has(key)) {
    values.assume(key, std::to_string(run.imaging.width));
    return;
  }
  const std::string text = values.text(key, "");
  const size_t cross = text.find('x');
  const std::vector<int64_t> width = numbers_of(text.substr(0, cross));
  const std::vector<int64_t> height = cross == std::string::npos ? width : numbers_of(text.substr(cross + 1));
  const auto allowed = [&](const std::vector<int64_t>& side) {
    return side.size() == 1 && side[0] >= step && side[0] <= most && side[0] % step == 0;
  };
  if (text.find('[') != std::string::npos || !allowed(width) || !allowed(height)) {
    values.complain(
        fmt::format("{}: '{}' is not allowed; allowed: multiples of {} pixels up to {}, such as "
                    "1024 or 1024x768",
                    key, text, step, most));
    return;
  }
  run.imaging.width = width[0];
  run.imaging.height = height[0];
}

void read_generation(KeyValues& values, TrainingRun& run) {
  const bool is_unet = std::holds_alternative<UNet>(run.model.pipeline->denoiser);
  values.flag("serve.generates");
  if (values.has("adapter.kind") && values.peek("adapter.kind") != "none")
    values.complain("adapter.kind: not modelled where images are made; allowed: none");
  run.training.micro_batch = values.whole("serve.images", 1, 1, 1 << 16);
  const std::string dtype = values.choice("serve.dtype", is_unet ? "float16" : "bfloat16",
                                          {"float16", "bfloat16", "float32", "half", "float", "auto"});
  run.training.precision = dtype == "float32" || dtype == "float"  ? Precision::kFp32
                           : dtype == "float16" || dtype == "half" ? Precision::kFp16
                           : dtype == "auto" && is_unet            ? Precision::kFp16
                                                                   : Precision::kBf16;
  run.training.mixed = false;
  run.imaging.guided = values.truth("serve.guidance", run.model.pipeline->guided);
  run.imaging.offloads = values.choice("serve.offload", "none", {"none", "model"}) == "model";
  run.imaging.sliced = values.truth("serve.vae_slicing");
  const bool of_training = !values.has("serve.resolution") && values.has("train.resolution");
  read_resolution(values, of_training ? "train.resolution" : "serve.resolution", run);
}

}  // namespace

std::vector<std::string_view> denoiser_types() {
  return {kUNet, kFlux, kStableDiffusion3};
}

bool is_diffusers_json(const std::string& text) {
  return text.find("\"_diffusers_version\"") != std::string::npos &&
         text.find("\"_class_name\"") != std::string::npos;
}

Result<RunKeys> read_diffusers_json(const std::string& text, const std::string& folder) {
  Result<Json> root = read_json_object(text);
  if (!root.ok()) return root.take_status();
  const std::string type =
      root->contains("_class_name") ? plain_class(text_of(root.value()["_class_name"])) : "";
  RunKeys out;
  out[kPipelineKey] = type;
  out["model.is_config_json"] = "true";
  if (is_denoiser(type)) {
    if (root->contains("quantization_config"))
      add_warnings({"quantization_config: not read: 16 bits are counted"}, out);
    add_part(root.value(), type == kUNet ? "unet" : "transformer", out);
    return out;
  }
  const auto refusal = [&](const std::string& what) {
    return Status::unsupported(
        fmt::format("{} of diffusers is not modelled; allowed: pipelines of {}; `spillway trace-model` or "
                    "`spillway dryrun` take the figures from its own code",
                    what, fmt::join(denoiser_types(), ", ")));
  };
  bool has_denoiser = false;
  for (const auto& [name, value] : root->items()) {
    if (name.starts_with('_') || !value.is_array() || value.size() != 2 || value[1].is_null()) continue;
    const std::string of_class = plain_class(text_of(value[1]));
    const bool is_encoder =
        std::find(kTextEncoders.begin(), kTextEncoders.end(), name) != kTextEncoders.end();
    const bool denoises = name == "unet" || name == "transformer";
    if (denoises && (!is_denoiser(of_class) || (of_class == kUNet) != (name == "unet")))
      return refusal(of_class);
    has_denoiser = has_denoiser || denoises;
    if (!denoises && !is_encoder && (name != "vae" || of_class != "AutoencoderKL")) {
      const bool has_weights = of_class.find("Scheduler") == std::string::npos &&
                               of_class.find("Tokenizer") == std::string::npos &&
                               of_class.find("Processor") == std::string::npos &&
                               of_class.find("Extractor") == std::string::npos;
      if (has_weights)
        add_warnings({fmt::format("{}: {} is not modelled and not counted", name, of_class)}, out);
      continue;
    }
    const std::string path = (std::filesystem::path(folder) / name / "config.json").string();
    Result<Json> part = read_part(path);
    if (!part.ok()) return part.take_status();
    if (part->contains("quantization_config"))
      add_warnings({fmt::format("{}.quantization_config: not read: 16 bits are counted", name)}, out);
    add_part(part.value(), name, out);
    if (denoises) out[fmt::format("model.{}._class_name", name)] = of_class;
  }
  if (has_denoiser && std::find(kPlain.begin(), kPlain.end(), type) == kPlain.end())
    add_warnings({fmt::format("{}: is counted as a pipeline from text to images", type)}, out);
  if (!has_denoiser) return refusal(type.empty() ? "a model" : type);
  return out;
}

bool has_pipeline(const RunKeys& keys) {
  return keys.count(kPipelineKey) > 0;
}

Result<Model> read_pipeline(KeyValues& values, Notes& notes) {
  auto pipeline = std::make_shared<Pipeline>();
  pipeline->name = values.text(kPipelineKey, "");
  if (values.has("model.weights"))
    values.complain(fmt::format("model.weights: '{}' is not modelled for a model of images; allowed: its own",
                                values.text("model.weights", "")));
  if (values.has("model.read_as"))
    values.complain("model.read_as: not allowed; a model of images is read as what its parts are");
  const bool is_unet = values.has_any("model.unet.");
  const std::string part = is_unet ? "unet" : "transformer";
  PartReader reader(values, part);
  const std::string type = plain_class(reader.text("_class_name"));
  if (!is_denoiser(type) || (type == kUNet) != is_unet)
    return Status::unsupported(fmt::format("{}._class_name: '{}' is not modelled; allowed: {}", part, type,
                                           fmt::join(denoiser_types(), ", ")));
  const bool rotary = type == kFlux;
  if (is_unet) {
    pipeline->denoiser = read_unet(values, part);
  } else {
    pipeline->denoiser = read_image_transformer(values, part, rotary);
  }
  if (values.has_any("model.vae.")) pipeline->coder = read_coder(values);
  if (!values.status().ok()) return values.status();
  const std::vector<int64_t> size = numbers_of(reader.text("sample_size"));
  const int64_t factor = pipeline->coder ? pipeline->coder->factor() : 8;
  const int64_t latents = size.empty() ? (is_unet ? 64 : 128) : size.front();
  pipeline->pixels = factor * std::clamp<int64_t>(latents, 2, kMostPixels / factor);
  if (pipeline->coder) {
    // diffusers' pipeline of SDXL, and its examples for that and for Stable Diffusion 3.
    const auto* unet = std::get_if<UNet>(&pipeline->denoiser);
    pipeline->coder->decodes_in_fp32 =
        unet != nullptr && unet->added_width > 0 && PartReader(values, "vae").truth("force_upcast", true);
    pipeline->coder->trains_in_fp32 = pipeline->coder->decodes_in_fp32 || type == kStableDiffusion3;
  }
  pipeline->text_tokens = is_unet ? 77 : rotary ? 512 : 77 + 256;
  pipeline->guided = !rotary;
  if (Status status = add_encoders(values, *pipeline, notes); !status.ok()) return status;
  if (!pipeline->coder)
    notes.warnings.emplace_back(
        "no autoencoder is named: the images' way to latents and back is not counted");
  if (!values.status().ok()) return values.status();
  Model model;
  model.type = pipeline->name;
  model.vocabulary_head = false;
  model.pipeline = std::move(pipeline);
  Tower tower;
  tower.name = part;
  tower.sequence = 1;
  tower.fixed = true;
  tower.divided = false;
  model.towers = {std::move(tower)};
  return model;
}

void read_imaging(KeyValues& values, TrainingRun& run) {
  run.notes.assumptions.emplace_back("what cuDNN takes beside a convolution's result is not counted");
  if (run.imaging.generates) {
    if (values.whole("parallel.gpus", 1) != 1)
      values.complain("parallel.gpus: images are made on one GPU; allowed: 1");
    read_generation(values, run);
    return;
  }
  run.imaging.encodes = values.truth("train.encodes", true);
  read_resolution(values, "train.resolution", run);
}

}  // namespace spillway::estimator
