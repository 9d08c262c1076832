// A recipe of another trainer's on its way to the keys of a run file. Each reader asks for the keys that it
// knows; what nobody asked for is named in a warning, and what would hold other things than a training step
// of one model is refused.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "driver/status.h"
#include "estimator/inputs/key_values.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {

class Recipe {
 public:
  explicit Recipe(std::map<std::string, std::string> flat) : flat_(flat), values_(std::move(flat)) {}

  // Tells whether it is there, with another value than "none".
  bool says(const std::string& key);
  // Tells whether any key begins so; they count as read.
  bool says_any(const std::string& start) { return values_.count(start) > 0; }
  std::string text(const std::string& key, const std::string& otherwise = "");
  // Tells whether it says true; `otherwise` where it is not there or says "auto". Other words are refused.
  bool flag(const std::string& key, bool otherwise = false);

  void set(const std::string& to, std::string value) { out_[to] = std::move(value); }
  bool has_set(const std::string& to) const { return out_.count(to) != 0; }
  void copy(const std::string& from, const std::string& to);
  // Names that the run file's words know, such as adamw_torch_fused; others are refused.
  void optimizer(const std::string& from);
  // Of projected gradients, in the text of an optimizer's arguments.
  void projection_rank(const std::string& from);
  // Which modules' gradients are projected: a warning where that may not be all of the layers' matrices.
  void projected(const std::string& from, std::initializer_list<std::string_view> all);
  void warn_if_paged(const std::string& optimizer);
  void attention(const std::string& from);
  // The kind unless the recipe says DoRA or rsLoRA by these keys; `rank`: where the recipe says none.
  void lora(const std::string& kind, const std::string& rank_key, const char* rank,
            const std::string& dora_key, const std::string& rslora_key);
  // Names of modules, or one of `all`.
  void targets(const std::string& from, std::initializer_list<std::string_view> all);
  // 16-bit weights that 16-bit states belong to, or fp32 ones under autocast.
  void precision(bool bf16, bool fp16, bool weights_are_16_bit);

  // Keys without an effect on memory; one that ends in '*' stands for all that begin so.
  void ignore(std::initializer_list<std::string_view> names);
  void refuse(const std::string& key, std::string_view why);
  // As refuse(), where the key says something, or where the flag is true.
  void refuse_said(const std::string& key, std::string_view why);
  void refuse_flag(const std::string& key, std::string_view why);
  void warn(std::string text) { warnings_.push_back(std::move(text)); }

  // A name of a model or a path; DeepSpeed's file beside the recipe.
  void set_model(std::string model) { model_ = std::move(model); }
  void set_deepspeed(std::string file) { deepspeed_ = std::move(file); }
  const std::string& model() const { return model_; }
  const std::string& deepspeed() const { return deepspeed_; }

  // The keys, and a warning that names what was not read. Errors: the first refusal.
  Result<RunKeys> finish();

 private:
  void drop_beside_adapter();
  void name_unread();

  std::map<std::string, std::string> flat_;
  KeyValues values_;
  RunKeys out_ = {};
  std::vector<std::string> warnings_ = {};
  std::string model_ = {}, deepspeed_ = {};
  Status refused_ = {};
};

// Returns the last part of a Python name, "AdamW" of "torch.optim.AdamW".
std::string last_part(const std::string& component);

// Readers, one file each.
void read_axolotl(Recipe& recipe);
void read_llama_factory(Recipe& recipe);
void read_llama_factory_v1(Recipe& recipe);
void read_torchtune(Recipe& recipe);
void read_automodel(Recipe& recipe);
void read_nemo_rl(Recipe& recipe);
void read_trainer(Recipe& recipe);
void read_accelerate(Recipe& recipe);

}  // namespace spillway::estimator
