// Parameters of every type of transformers, as transformers itself builds it on the meta device, or a refusal
// that names the type. meta_parameters.py writes the lines.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {
namespace {

using Json = nlohmann::json;

struct Read {
  int64_t parameters = 0;
  std::vector<std::string> warnings = {};
  std::string refused = {};
};

Read read(const Json& config) {
  Read out;
  Result<RunKeys> keys = read_model_json(config.dump());
  EXPECT_TRUE(keys.ok()) << keys.status().text();
  KeyValues values(keys.value());
  Notes notes;
  Result<Model> model = read_hugging_face(values, "model.", notes);
  if (!model.ok()) return {0, {}, model.status().text()};
  return {total_parameters(model.value()), notes.warnings, {}};
}

// Files say what wrote them.
std::string version_of(const std::string& file) {
  if (file == "parameters-4.57.jsonl") return "4.57.6";
  return file == "parameters-5.17.jsonl" ? "5.17.0" : "5.24.0";
}

// As a JSON merge patch, but for a key that is null: the file says so.
void change(Json& config, const Json& patch) {
  for (const auto& [key, value] : patch.items()) {
    if (value.is_object())
      change(config[key], value);
    else
      config[key] = value;
  }
}

class MetaParameters : public testing::TestWithParam<const char*> {
 protected:
  // Lines of a type after its first say only what is different in its config.
  Json config_of(const Json& row) {
    const std::string type = row["type"];
    if (row.contains("config")) return configs_[type] = row["config"];
    if (!row.contains("patch")) return {{"model_type", type}, {"architectures", {row["class"]}}};
    Json config = configs_[type];
    change(config, row["patch"]);
    return config;
  }

  std::map<std::string, Json> configs_ = {};
};

TEST_P(MetaParameters, AreEqualOrTheTypeIsRefused) {
  std::ifstream lines(std::string(SPILLWAY_PARAMETERS) + "/" + GetParam());
  ASSERT_TRUE(lines) << GetParam();
  const std::vector<std::string_view> known = known_types();
  int equal = 0, refused = 0, warned = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    Json config = config_of(row);
    config["transformers_version"] = version_of(GetParam());
    if (!row.contains("parameters")) continue;
    const Read answer = read(config);
    const std::string type = row["type"];
    if (!answer.refused.empty()) {
      ++refused;
      const bool is_known = std::find(known.begin(), known.end(), type) != known.end();
      EXPECT_EQ(is_known, answer.refused.find("model_type '") == std::string::npos) << answer.refused;
      EXPECT_TRUE(is_known || row.contains("config") ||
                  answer.refused.find("'" + type + "'") != std::string::npos)
          << type << ": " << answer.refused;
    } else if (answer.parameters == row["parameters"].get<int64_t>()) {
      ++equal;
    } else {
      ++warned;
      EXPECT_FALSE(answer.warnings.empty()) << line.substr(0, 400) << ": " << answer.parameters;
    }
  }
  RecordProperty("equal", equal);
  std::printf("%s: %d equal, %d refused, %d warned of\n", GetParam(), equal, refused, warned);
  EXPECT_GT(equal, 950);
}

// The lines hold what each type's class takes by itself, so that a file without one of the keys is of the
// same model: it is read so, or refused, or a warning says what is left out.
TEST_P(MetaParameters, AreTheSameWhereAFileDoesNotSayThem) {
  std::ifstream lines(std::string(SPILLWAY_PARAMETERS) + "/" + GetParam());
  ASSERT_TRUE(lines) << GetParam();
  std::map<std::string, bool> seen;
  int equal = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    if (!row.contains("config") || std::exchange(seen[row["type"]], true)) continue;
    Json config = row["config"];
    config["transformers_version"] = version_of(GetParam());
    const Read whole = read(config);
    if (!whole.refused.empty()) continue;
    for (const auto& [key, value] : row["config"].items()) {
      // What a model has in common with its parts is said by the whole.
      if (key == "model_type" || key == "architectures" || key == "tie_word_embeddings") continue;
      Json without = config;
      without.erase(key);
      const Read answer = read(without);
      if (!answer.refused.empty()) continue;
      if (answer.parameters == whole.parameters)
        ++equal;
      else
        EXPECT_GT(answer.warnings.size(), whole.warnings.size()) << row["type"] << " without " << key;
    }
  }
  EXPECT_GT(equal, 700);
}

// One size that two types call differently.
struct Said {
  const char* type;
  const char* key;
  int64_t value;
  const char* usual;  // as the type's class calls it
};

class SizesUnderAnotherName : public testing::TestWithParam<Said> {};

TEST_P(SizesUnderAnotherName, AreNotThoseOfTheClass) {
  const Said& said = GetParam();
  const Json silent = {{"model_type", said.type}, {"hidden_size", 1024},       {"num_hidden_layers", 4},
                       {"vocab_size", 32000},     {"num_attention_heads", 16}, {"num_key_value_heads", 16}};
  Json config = silent, usual = silent;
  config[said.key] = said.value;
  usual[said.usual] = said.value;
  const Read answer = read(config);
  EXPECT_EQ(answer.refused, "");
  EXPECT_EQ(answer.parameters, read(usual).parameters);
  EXPECT_NE(answer.parameters, read(silent).parameters);
}

INSTANTIATE_TEST_SUITE_P(Transformers, SizesUnderAnotherName,
                         testing::Values(Said{"mixtral", "num_experts", 4, "num_local_experts"},
                                         Said{"qwen3_moe", "num_local_experts", 4, "num_experts"},
                                         Said{"olmoe", "num_local_experts", 4, "num_experts"},
                                         Said{"gpt_oss", "num_experts", 4, "num_local_experts"}),
                         [](const auto& info) { return std::string(info.param.type); });

INSTANTIATE_TEST_SUITE_P(Transformers, MetaParameters,
                         testing::Values("parameters-4.57.jsonl", "parameters-5.17.jsonl",
                                         "parameters-5.24.jsonl"),
                         [](const auto& info) {
                           const std::string version = version_of(info.param);
                           return "v" + version.substr(0, 1) + "_" + version.substr(2, 2);
                         });

}  // namespace
}  // namespace spillway::estimator
