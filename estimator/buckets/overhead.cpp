#include "estimator/buckets/overhead.h"

#include "estimator/buckets/activations.h"
#include "estimator/buckets/experts.h"

namespace spillway::estimator {
namespace {

const Tower& loss_tower(const TrainingRun& run) {
  return run.model.towers.back();
}

double squared(double x) {
  return x * x;
}

// The largest of them: the buffer is shared by all layers.
double score_buffer_bytes(const TrainingRun& run) {
  double largest = 0;
  for (const Tower& tower : run.model.towers) {
    for (const Layer& layer : tower.layers) {
      for (const Block& block : layer) {
        const auto* attention = std::get_if<Attention>(&block);
        if (attention == nullptr) continue;
        const double heads = static_cast<double>(attention->heads) / static_cast<double>(run.parallel.tensor);
        largest = std::max(largest, activation_element_bytes(run) * heads *
                                        static_cast<double>(run.training.micro_batch) *
                                        squared(static_cast<double>(tower.sequence)));
      }
    }
  }
  return largest;
}

bool has_experts(const TrainingRun& run) {
  for (const Layer& layer : loss_tower(run).layers) {
    for (const Block& block : layer) {
      if (std::holds_alternative<Experts>(block)) return true;
    }
  }
  return false;
}

// One byte for each pair of tokens of a sample; a context-parallel rank has its share of the rows.
double mask_bytes(const TrainingRun& run) {
  const auto* attention = std::get_if<Attention>(&loss_tower(run).layers.front().front());
  const bool padding = attention != nullptr && attention->mask == AttentionMask::kPadding;
  if (padding && run.behaviour.keeps_score_masks) return 0;  // a row for each sample; layers make the rest
  return static_cast<double>(run.training.micro_batch) *
         squared(static_cast<double>(loss_tower(run).sequence));
}

}  // namespace

Buckets persistent_overhead(const TrainingRun& run, const Stage& stage) {
  const Training& training = run.training;
  const Parallel& parallel = run.parallel;
  const Tower& tower = loss_tower(run);
  Buckets out;
  out.push_back({"workspaces",
                 run.reserve.cublas_workspace_bytes * static_cast<double>(run.reserve.cublas_workspaces) +
                     run.reserve.engine_workspace_bytes * static_cast<double>(run.reserve.engine_workspaces),
                 "cuBLAS and Transformer Engine, one for each handle and stream",
                 "PyTorch CUDABlas.cpp; "
                 "Transformer Engine, cpp_extensions/gemm"});
  if (run.reserve.declared_bytes > 0)
    out.push_back({"declared", run.reserve.declared_bytes, "overhead.extra", "the run's description"});
  if (training.attention == AttentionKernel::kLocal) {
    out.push_back({"attention score buffer", score_buffer_bytes(run), "2 a s^2 b / t",
                   "Megatron-LM, dot_product_attention.py, global memory buffer"});
  }
  if (run.framework == Framework::kMegatron && has_experts(run) &&
      training.dispatcher == TokenDispatcher::kAllGather) {
    out.push_back({"gathered tokens", gathered_token_bytes(run, rank_tokens(run, tower)), "2 h T/t_sp etp ep",
                   "Megatron-LM, token_dispatcher.py, all-gather"});
  }
  if (run.framework == Framework::kMegatron && parallel.pipeline > 1) {
    out.push_back({"pipeline buffers",
                   2 * static_cast<double>(parallel.virtual_stages) * layer_input_bytes(run, tower),
                   "2 v (2 h T/t_sp)", "Megatron-LM, schedules.py"});
    if (run.behaviour.keeps_masks && training.attention_mask) {
      out.push_back({"kept attention masks", static_cast<double>(parallel.pipeline) * mask_bytes(run),
                     "p b s^2", "Megatron-LM, get_batch since 2026-05-21"});
    }
  }
  if (training.deferred_embedding_gradients > 0 && run.behaviour.keeps_deferred_gradient && stage.last) {
    out.push_back(
        {"deferred gradient buffer",
         activation_element_bytes(run) * static_cast<double>(vocabulary_shard(run) * run.model.hidden),
         "2 V h / t", "Megatron-LM, defer-embedding-wgrad-compute"});
  }
  return out;
}

Buckets transient_overhead(const TrainingRun& run, const Stage& stage) {
  const Training& training = run.training;
  Buckets out;
  const bool mask_counted = run.behaviour.keeps_masks && run.parallel.pipeline > 1;
  if (training.attention_mask && !mask_counted) {
    out.push_back({"attention mask", mask_bytes(run) / static_cast<double>(run.parallel.context), "b s^2 / c",
                   "Megatron-LM, gpt_dataset.py"});
  }
  if (stage.first && training.hidden_dropout) {
    double bytes = 0;
    for (const Tower& tower : run.model.towers)
      bytes += layer_input_bytes(run, tower) / activation_element_bytes(run);
    out.push_back({"embedding dropout mask", bytes, "h T/t_sp", "Megatron-LM, language_model_embedding.py"});
  }
  return out;
}

}  // namespace spillway::estimator
