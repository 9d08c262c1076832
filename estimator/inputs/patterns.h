// The small languages in which training scripts write down what each layer is and where it lies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "driver/status.h"

namespace spillway::estimator {

// Megatron-LM's moe-layer-freq for `layers` layers: "2" (every second layer, from the first) or a sum of
// lists such as
// "([0]*3+[1]*13)". One entry for each layer, true where it has experts.
Result<std::vector<bool>> parse_layer_frequency(std::string_view text, int64_t layers);

// "Et*3|(tt|)*6tL" with every repetition written out: "Ettt|tt|tt|...|tL". Backslashes are dropped.
Result<std::string> expand_layout(std::string_view text);

// The words of a list as shells, YAML and Python write it: "[attn mlp]", "attn,mlp" and "'attn' 'mlp'" are
// the same.
std::vector<std::string> listed_words(std::string text);

// The parts between bars.
std::vector<std::string> split_stages(std::string_view text);

}  // namespace spillway::estimator
