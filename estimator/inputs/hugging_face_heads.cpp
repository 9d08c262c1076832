#include "estimator/inputs/hugging_face_heads.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>

namespace spillway::estimator {
namespace {

enum class Head {
  kVocabulary,
  kNone,
  kMaskedTokens,
  kPretraining,  // masked tokens, and whether two sentences follow each other
  kSentences,
  kClasses,
  kTokenClasses,
  kSpan,
  kChoice,
};

struct Ending {
  std::string_view text;
  Head head;
};
constexpr std::array<Ending, 11> kEndings = {{{"ForCausalLM", Head::kVocabulary},
                                              {"LMHeadModel", Head::kVocabulary},
                                              {"ForConditionalGeneration", Head::kVocabulary},
                                              {"ForMaskedLM", Head::kMaskedTokens},
                                              {"ForPreTraining", Head::kPretraining},
                                              {"ForNextSentencePrediction", Head::kSentences},
                                              {"ForSequenceClassification", Head::kClasses},
                                              {"ForTokenClassification", Head::kTokenClasses},
                                              {"ForQuestionAnswering", Head::kSpan},
                                              {"ForMultipleChoice", Head::kChoice},
                                              {"Model", Head::kNone}}};

// The first name of a list as JSON writes it.
std::string first_name(const std::string& list) {
  const size_t from = list.find('"');
  const size_t to = from == std::string::npos ? from : list.find('"', from + 1);
  return to == std::string::npos ? std::string() : list.substr(from + 1, to - from - 1);
}

std::optional<Head> head_of(std::string_view name) {
  if (name.find("DoubleHeads") != std::string_view::npos || name.find("Encoder") != std::string_view::npos)
    return {};
  for (const Ending& ending : kEndings) {
    if (name.size() > ending.text.size() && name.substr(name.size() - ending.text.size()) == ending.text)
      return ending.head;
  }
  return {};
}

void drop_vocabulary(Model& model) {
  model.vocabulary_head = false;
  model.tied = true;
  model.output_bias = false;
}

// transformers, models/bert/modeling_bert.py and models/roberta: a pooler, or a layer of its own of the same
// size, before classes of whole samples; a layer, its norm and a term for each token before masked tokens.
bool set_encoder_head(Head head, int64_t labels, Model& model) {
  const int64_t h = model.hidden;
  const int64_t dense = h * h + h;
  const int64_t prediction = dense + 2 * h;
  const auto set = [&](int64_t parameters) { model.head_parameters = parameters; };
  switch (head) {
    case Head::kNone:
      break;
    case Head::kVocabulary:
    case Head::kMaskedTokens:
    case Head::kPretraining:
      set(prediction + (head == Head::kPretraining ? dense + 2 * h + 2 : 0));
      // A projection of its own has terms of its own beside the head's, since transformers 5.
      if (!model.tied) model.head_parameters += model.vocabulary;
      model.output_bias = true;
      return true;
    case Head::kSentences:
      set(dense + 2 * h + 2);
      break;
    case Head::kClasses:
      set(dense + labels * (h + 1));
      break;
    case Head::kTokenClasses:
      set(labels * (h + 1));
      break;
    case Head::kSpan:
      set(2 * h + 2);
      break;
    case Head::kChoice:
      set(dense + h + 1);
      break;
  }
  drop_vocabulary(model);
  return true;
}

// transformers, modeling_layers.py, Generic...: no bias where a whole sample is classified.
bool set_decoder_head(Head head, int64_t labels, Model& model) {
  const int64_t h = model.hidden;
  switch (head) {
    case Head::kVocabulary:
      return true;
    case Head::kNone:
      break;
    case Head::kClasses:
      model.head_parameters = labels * h;
      break;
    case Head::kTokenClasses:
      model.head_parameters = labels * (h + 1);
      break;
    case Head::kSpan:
      model.head_parameters = 2 * h + 2;
      break;
    case Head::kMaskedTokens:
    case Head::kPretraining:
    case Head::kSentences:
    case Head::kChoice:
      return false;
  }
  drop_vocabulary(model);
  return true;
}

}  // namespace

int64_t label_count(KeyValues& values, const std::string& prefix) {
  const int64_t named = values.count(prefix + "id2label.");
  if (named > 0) return named;
  return values.has(prefix + "num_labels") ? values.whole(prefix + "num_labels", 2, 0) : 2;
}

std::string class_name(KeyValues& values, const std::string& prefix) {
  return first_name(values.text(prefix + "architectures", ""));
}

void set_head(KeyValues& values, const std::string& prefix, const Family& family, Model& model,
              Notes& notes) {
  const std::string name = class_name(values, prefix);
  if (name.empty()) return;
  const std::optional<Head> head = head_of(name);
  if (family.only_encoder && !model.tied)
    notes.warnings.emplace_back(
        "tie_word_embeddings: counted as transformers 5 does; before it had a term less for each token");
  const bool takes_classes = !family.has_encoder || head == Head::kVocabulary || head == Head::kNone;
  const int64_t labels = label_count(values, prefix);
  if (head && takes_classes &&
      (family.only_encoder ? set_encoder_head(*head, labels, model) : set_decoder_head(*head, labels, model)))
    return;
  notes.warnings.push_back(
      fmt::format("architectures: '{}' is not modelled: the usual class of model_type '{}' is counted", name,
                  family.type));
}

}  // namespace spillway::estimator
