// Sizes of open models that people ask for, by name, so that no file is needed. Each row says what its sizes
// were compared with, key by key; a test holds its number of parameters to the published one as well. Where
// nothing was found, positions, windows, or how a width is divided into heads may differ: a warning says so.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "estimator/inputs/run_file.h"

namespace spillway::estimator {

// Says what the sizes were compared with.
enum class SizesSource {
  kConfig,  // a copy of its config.json in a public repository
  kTable,   // sizes of it that another public project has written down or tests with
  kNone,    // nothing that was found has all of them, or two that were do not agree
};

struct KnownModel {
  std::string_view name;        // "llama-3.1-8b"
  std::string_view repository;  // on huggingface.co
  double billions;  // of parameters of the language part, as published, or as transformers builds it (Gemma
                    // 4, Qwen 3.5 and later)
  std::string_view sizes;  // words as known_models.cpp explains them
  SizesSource source = SizesSource::kNone;
};

const std::vector<KnownModel>& known_models();

// By its name or its repository's, in capitals or not, with or without the owner and an ending such as
// "-Instruct", which changes no size. Null where none is known.
const KnownModel* find_known_model(std::string_view name);

// The sizes, as keys of [model].
RunKeys known_model_keys(const KnownModel& model);

// "; did you mean 'llama-3.1-8b'?", or nothing.
std::string meant_model(const std::string& name);

}  // namespace spillway::estimator
