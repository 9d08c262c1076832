// A run of Megatron-LM that several tests start from.
#pragma once

#include <map>
#include <string>

namespace spillway::estimator::test {

inline std::map<std::string, std::string> small_gpt_arguments() {
  return {{"num-layers", "12"},
          {"hidden-size", "512"},
          {"num-attention-heads", "8"},
          {"seq-length", "1024"},
          {"max-position-embeddings", "1024"},
          {"micro-batch-size", "4"},
          {"global-batch-size", "32"},
          {"bf16", "true"},
          {"attention-backend", "unfused"}};
}

}  // namespace spillway::estimator::test
