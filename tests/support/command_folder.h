// A folder of files for a test of the command, and a model to write into it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/folder.h"
#include "tests/support/run_command.h"

namespace spillway::test {

constexpr const char* kLlama8b =
    R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false,
        "max_position_embeddings": 8192, "rope_scaling": {"type": "linear"}, "eos_token_id": [1, 2]})";

class CommandFolder : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.file(name); }
  std::string write(const std::string& name, const std::string& text) const {
    return folder_.write(name, text);
  }
  std::string read(const std::string& name) const { return folder_.read(name); }

  // Exit code 1, nothing on stdout, one line on stderr with `part` in it.
  static void expect_complaint(const std::vector<std::string>& arguments, const std::string& part) {
    const CommandResult result = run_command(arguments);
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_EQ(result.error_lines(), 1) << result.err;
    EXPECT_THAT(result.err, ::testing::HasSubstr(part));
    EXPECT_THAT(result.out, ::testing::IsEmpty());
  }

  const Folder folder_;
};

}  // namespace spillway::test
