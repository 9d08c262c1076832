#include "estimator/inputs/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "estimator/inputs/nearest.h"

namespace spillway::estimator {
namespace {

// bitsandbytes, functional.py: an fp32 scale for each 64 weights; doubly quantised a byte, and an fp32 scale
// for each 256 of these.
constexpr double kScale4bit = 4.0 / 64;
constexpr double kDoubleScale4bit = 1.0 / 64 + 4.0 / (64 * 256);

// Holds a word that `model.weights` may be; bytes for each element of a layer's matrices.
struct Weights {
  std::string_view name;
  double bytes;
};
constexpr std::array<Weights, 6> kWeights = {{{"nf4", 0.5 + kDoubleScale4bit},
                                              {"fp4", 0.5 + kScale4bit},
                                              {"int4", 0.5 + 2.5 / 128},
                                              {"int8", 1},
                                              {"fp8", 1 + 4.0 / (128 * 128)},
                                              {"mxfp4", 0.5 + 1.0 / 32}}};

// A method's bytes from its own keys. AutoGPTQ and AutoAWQ keep a 16-bit scale and a zero point for each
// group; HQQ two 16-bit ones.
class Reader {
 public:
  Reader(KeyValues& values, std::string section) : values_(values), section_(std::move(section)) {}

  bool said(const char* key) const { return values_.has(section_ + key); }
  std::string text(const char* key, const char* otherwise) { return values_.text(section_ + key, otherwise); }
  bool flag(const char* key) { return values_.truth(section_ + key, false); }
  int64_t bits(const char* key, int64_t otherwise) { return values_.whole(section_ + key, otherwise, 1, 16); }
  // Negative or empty: a whole row.
  double group(const char* key, int64_t otherwise) {
    const std::string text = values_.text(section_ + key, "null");
    if (text == "null" || text == "-1") return text == "-1" ? 1e9 : static_cast<double>(otherwise);
    return static_cast<double>(values_.whole(section_ + key, otherwise, 1));
  }

 private:
  KeyValues& values_;
  std::string section_;
};

double grouped_bytes(Reader& in) {
  const auto bits = static_cast<double>(in.bits(in.said("w_bit") ? "w_bit" : "bits", 4));
  const double group = in.group(in.said("q_group_size") ? "q_group_size" : "group_size", 128);
  return bits / 8 + (2 + bits / 8) / group;
}

double bitsandbytes_bytes(Reader& in) {
  if (!in.flag("load_in_4bit")) return 1;
  return 0.5 + (in.flag("bnb_4bit_use_double_quant") ? kDoubleScale4bit : kScale4bit);
}

// compressed-tensors: the first group of layers; those of several widths are warned of.
double compressed_bytes(Reader& in) {
  const std::string group = "config_groups.group_0.weights.";
  const auto bits = static_cast<double>(in.bits((group + "num_bits").c_str(), 8));
  const double scale = in.text("format", "").find("nvfp4") != std::string::npos ? 1 : 2;
  return bits / 8 + scale / in.group((group + "group_size").c_str(), int64_t{1} << 20);
}

double hqq_bytes(Reader& in) {
  const char* bits = in.said("nbits") ? "nbits" : "quant_config.weight_quant_params.nbits";
  const char* group = in.said("group_size") ? "group_size" : "quant_config.weight_quant_params.group_size";
  return static_cast<double>(in.bits(bits, 4)) / 8 + 4 / in.group(group, 64);
}

double eight_bits(Reader&) {
  return 1;
}
double fp8_bytes(Reader&) {
  return kWeights[4].bytes;
}
double mxfp4_bytes(Reader&) {
  return kWeights[5].bytes;
}

struct Method {
  std::string_view name;
  double (*bytes)(Reader&);
  bool only_experts = false;
};
constexpr std::array<Method, 11> kMethods = {{{"bitsandbytes", bitsandbytes_bytes},
                                              {"gptq", grouped_bytes},
                                              {"awq", grouped_bytes},
                                              {"auto-round", grouped_bytes},
                                              {"intel/auto-round", grouped_bytes},
                                              {"hqq", hqq_bytes},
                                              {"fp8", fp8_bytes},
                                              {"fbgemm_fp8", eight_bits},
                                              {"eetq", eight_bits},
                                              {"compressed-tensors", compressed_bytes},
                                              {"mxfp4", mxfp4_bytes, true}}};

std::vector<std::string_view> method_names() {
  std::vector<std::string_view> out;
  for (const Method& method : kMethods) out.push_back(method.name);
  return out;
}

// Layers that a file takes out beside those that stay whole anyway: the head, routers, and what is not
// language.
bool takes_layers_out(std::string list) {
  for (const std::string_view known :
       {"lm_head", "gate", "router", "embed", "vision", "visual", "self_attn"}) {
    if (list.find(known) != std::string::npos && known != "self_attn") list.clear();
  }
  return list.find_first_not_of("[]\"', nul") != std::string::npos;
}

void read_method(KeyValues& values, const std::string& section, Notes& notes, QuantisedWeights& out) {
  Reader in(values, section);
  std::string name = in.text("quant_method", "");
  // Files of bitsandbytes before it had a name.
  if (name.empty() && (in.said("load_in_4bit") || in.said("load_in_8bit"))) name = "bitsandbytes";
  const auto* const found = std::find_if(kMethods.begin(), kMethods.end(),
                                         [&](const Method& method) { return name == method.name; });
  if (found == kMethods.end()) {
    values.complain(fmt::format(
        "{}quant_method: '{}' is not modelled; allowed: {}, or model.weights = trained for 16-bit weights{}",
        section, name, fmt::join(method_names(), ", "), did_you_mean(name, method_names())));
    return;
  }
  out = {{found->bytes(in), found->only_experts}, fmt::format("quantization_config '{}'", name)};
  for (const char* key : {"modules_to_not_convert", "ignore", "llm_int8_skip_modules"}) {
    if (in.said(key) && !found->only_experts && takes_layers_out(in.text(key, "")))
      notes.warnings.push_back(
          fmt::format("quantization_config.{}: layers it names are counted as quantised", key));
  }
  if (in.said("config_groups.group_1.weights.num_bits"))
    notes.warnings.emplace_back(
        "quantization_config.config_groups: all layers are counted as those of group_0");
}

}  // namespace

QuantisedWeights read_quantised_weights(KeyValues& values, const std::string& prefix, Notes& notes) {
  QuantisedWeights out;
  const std::string section = prefix + "quantization_config.";
  const bool has_section = values.count(section) > 0;
  const std::string weights = values.text(prefix + "weights", has_section ? "as the file says" : "trained");
  if (weights == "trained") return out;
  if (weights == "as the file says") {
    read_method(values, section, notes, out);
    return out;
  }
  std::vector<std::string_view> names = {"trained"};
  for (const Weights& kind : kWeights) {
    names.push_back(kind.name);
    if (weights == kind.name)
      return {{kind.bytes, kind.name == "mxfp4"}, fmt::format("model.weights '{}'", weights)};
  }
  values.complain(fmt::format("{}weights: '{}' is not known; allowed: {}{}", prefix, weights,
                              fmt::join(names, ", "), did_you_mean(weights, names)));
  return out;
}

void read_quantization(KeyValues& values, const std::string& prefix, TrainingRun& run) {
  const QuantisedWeights read = read_quantised_weights(values, prefix, run.notes);
  if (!read.weights.on()) return;
  run.training.frozen = read.weights;
  const std::string adapter = values.peek("adapter.kind");
  if (!adapter.empty() && adapter != "none") return;  // the file says what is trained
  run.notes.warnings.push_back(fmt::format(
      "{}: weights of {:.3g} bytes are not trained: no gradients and no optimizer states are "
      "counted for them; adapter.kind names what is trained beside them, model.weights = trained is a run of "
      "the same model in 16 bits",
      read.what, read.weights.bytes));
}

}  // namespace spillway::estimator
