// The answer to `spillway estimate --serve`: what a server of generated text holds, in the words that vLLM
// and SGLang print when they start.
#pragma once

#include <vector>

#include "cli/estimate/question.h"
#include "estimator/serving/serving.h"

namespace spillway {

// Yes where every GPU has room for the requests that were asked for.
Answer answer_serve(const estimator::ServingRun& run, const std::vector<estimator::GpuMemory>& gpus,
                    bool json);

}  // namespace spillway
