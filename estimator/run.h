// Says how a model is trained: precision, batch, sharding, kernels, machine. Plain data, filled by a reader
// in inputs/.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/model.h"
#include "estimator/model_code.h"

namespace spillway::estimator {

// Whose code runs: it decides which tensors are saved for the backward pass.
enum class Framework {
  kMegatron,
  kPytorch,       // lean code of one kernel for each norm and activation: torchtitan, torchtune
  kTransformers,  // a Hugging Face model's own code
};

enum class Precision { kFp32, kFp16, kBf16 };

enum class OptimizerKind {
  kAdam,
  kAdam8bit,
  kAdam4bit,
  kAdamMini,
  kAdafactor,
  kLion,
  kSgdMomentum,
  kSgd,
  kMuon
};

// Says what of the model states is divided over the data-parallel ranks: ZeRO's stages.
enum class DataSharding { kNone, kOptimizer, kGradients, kParameters };

// Says how attention scores are kept for the backward pass.
enum class AttentionKernel {
  kFlash,         // not kept
  kMaterialised,  // kept, by fused softmax kernels
  kLocal,         // kept, and scores are written to a buffer that lives as long as the process
};

enum class Recompute {
  kNone,
  kSelective,
  kOperators,  // torchtitan's policy: attention and every second matrix product are kept, the rest is not
  kFull,
};

// Says what selective recomputation drops.
struct RecomputeModules {
  bool attention_core = false;
  bool layer_norm = false;
  bool latent_projection = false;
  bool mlp = false;
  bool expert_activation = false;
  bool experts = false;
};

// Parts of Megatron-LM's model that run as captured CUDA graphs (cuda_graphs.py, full_cuda_graph.py). All
// graphs share a pool, which keeps what it once had.
struct CapturedParts {
  bool iteration = false;  // one graph runs the whole forward and backward pass
  // Else each layer has a graph for each microbatch in flight, of these of its blocks.
  bool attention = false;
  bool mlp = false;
  bool router = false;  // and shared experts, of layers with routed ones
  bool experts = false;
  bool mixers = false;
  int64_t eager_steps = 3;  // before they are captured

  bool on() const { return iteration || attention || mlp || router || experts || mixers; }
};

// Parts of Megatron-LM's layers whose saved tensors can wait in host memory (its --offload-modules).
enum class MovedPart {
  kNone,
  kAttentionNorm,
  kQueryKeyValue,
  kAttentionCore,
  kAttentionOutput,
  kMlpNorm,
  kExpertInput,
  kExpertActivation,
};
constexpr size_t kMovedParts = 8;

// What autograd saves goes to host memory part by part, and a part comes back when one of the layer behind it
// has been used (fine_grained_activation_offload.py). The last ones of each part stay, of the first backward
// pass.
struct MovedTensors {
  std::array<bool, kMovedParts> of = {};
  double least_elements = 0;         // smaller tensors stay
  bool whole_expert_inputs = false;  // those of experts are kept in 16 bits for it, beside fp8

  bool on() const { return of != std::array<bool, kMovedParts>(); }
  bool moves(MovedPart part, double elements) const {
    return of[static_cast<size_t>(part)] && elements >= least_elements;
  }
};

enum class CrossEntropy {
  kVocabularyParallel,  // Megatron's own
  kFused,               // Megatron's, compiled
  kEager,               // F.cross_entropy on logits cast to fp32
  kChunked,             // logits stay in 16 bits; the loss takes an eighth of them at a time
  kFusedLinear,         // logits are never whole
};

enum class TokenDispatcher { kAllGather, kAllToAll };

enum class Gpu { kA100, kH100, kGb200, kOther };

// Whose rounding is added to what tensors ask for, and whose reserved memory the verdict counts (reserved.h).
enum class AllocatorModel {
  kPytorch,     // the native allocator: what is left of a block below 1 MiB stays with it
  kSpillway,    // lines of 512 bytes: less than a page for each thousand tensors, not counted
  kExpandable,  // PyTorch's with expandable segments: lines of 512 bytes as well
};

struct Parallel {
  int64_t world = 1;
  int64_t tensor = 1;
  bool sequence = false;
  int64_t pipeline = 1;
  int64_t virtual_stages = 1;
  int64_t microbatch_group = 0;  // of the interleaved schedule; 0: as many as pipeline stages
  int64_t context = 1;
  int64_t expert = 1;
  int64_t expert_tensor = 1;
  // Layers on each virtual stage in model order; empty: divided evenly.
  std::vector<int64_t> stage_layers = {};
  DataSharding sharding = DataSharding::kNone;
  int64_t optimizer_instances = 1;  // replicas of the sharded optimizer

  int64_t data() const { return world / (tensor * pipeline * context); }
  int64_t expert_data() const { return world / (expert_tensor * expert * pipeline); }
  int64_t sequence_shards() const { return sequence ? tensor : 1; }
};

// Matrix products in 8 bits (Transformer Engine): each matrix beside its 16-bit weight, for the forward and
// for the backward pass, and inputs of products kept in 8 bits.
struct Fp8 {
  double weight_copies_bytes = 0;  // for each element of a matrix; 0: no fp8
  double input_bytes = 0;          // for each element of a kept input
  int64_t amax_history = 0;        // fp32 entries for each scaled tensor, where scaling is delayed
  bool primary = false;            // matrices have no 16-bit weights beside these copies

  bool on() const { return weight_copies_bytes > 0; }
};

// Weights of few bits, which no optimizer updates.
struct FrozenWeights {
  double bytes = 0;  // of an element of the layers' matrices, scales included; 0: weights are trained
  bool only_experts = false;  // the other matrices have 16 bits

  bool on() const { return bytes > 0; }
};

enum class AdapterKind {
  kNone,
  kLowRank,  // LoRA and what follows from it: narrow matrices beside frozen ones
  kScaling,  // IA3: a factor for each output of a matrix, or for each input
  kPrompt,   // prompt tuning: tokens before the text's, whose embeddings are trained
};

// What is trained beside frozen weights (PEFT).
struct Adapter {
  AdapterKind kind = AdapterKind::kNone;
  int64_t rank = 0;                             // kLowRank
  bool dora = false;                            // with a trained magnitude for each output
  std::vector<std::string> scaled_inputs = {};  // kScaling: targets whose input is scaled
  int64_t virtual_tokens = 0;                   // kPrompt
  bool all_linear = false;
  std::vector<std::string> targets = {};  // names of modules
  double element = 4;                     // bytes of a weight
  bool dropout = false;
  std::vector<std::string> trained_modules = {};  // copied and trained whole: lm_head, embed_tokens

  bool on() const { return kind != AdapterKind::kNone; }
  bool targets_module(std::string_view name) const;
  bool scales_input(std::string_view name) const;
  bool trains(std::string_view name) const;
};

// An adapter without targets: nothing is trained.
inline Adapter frozen_model() {
  Adapter out;
  out.kind = AdapterKind::kLowRank;
  return out;
}

// What the model's scores of its samples are compared with.
enum class Reference {
  kCopy,  // those of a frozen model of the same weights
  kBase,  // its own without its adapters
  kNone,  // nothing, or what was computed before
};

// Training on scores of whole samples (TRL's DPOTrainer, GRPOTrainer and PPOTrainer).
struct Preference {
  bool on = false;
  bool pairs = false;  // a sample of micro_batch is two sequences, which the reference scores within the step
  // PPO: a model of the same widths predicts each token's value and is trained too; a step begins with
  // answers to prompts, which the model writes and the reference, the value model and a reward model score.
  bool has_value_model = false;
  int64_t rollout_batch = 0;  // answers that are written, or scored, at a time; only where values are learned
  double reward_bytes = 0;    // of reward models on the same GPU
  Reference reference = Reference::kNone;
  int64_t prompt = 0;       // tokens at the start of a sequence that are not scored
  double engine_bytes = 0;  // of an inference engine on the same GPU, while it generates
  double asleep_bytes = 0;  // and while the model is trained
};

// Layers that are trained at a time, while the others are frozen (LISA, BAdam). They are taken to be the
// first ones, whose gradients pass all others.
struct Turns {
  int64_t layers = 0;        // 0: all are trained at once
  bool others = false;       // what is in no layer, such as the vocabulary's table, is always trained
  bool states_stay = false;  // of layers that have had their turn
  bool fp32_copies = false;  // of the weights that are trained

  bool on() const { return layers > 0; }
};

struct Training {
  Precision precision = Precision::kBf16;
  bool autocast = false;       // fp32 weights and states, 16-bit activations
  bool mixed = true;           // 16-bit weights beside an fp32 copy; false: one copy in `precision`
  bool fp32_gradients = true;  // gradients are accumulated in fp32
  bool half_master = false;    // the copy that the optimizer updates is a 16-bit one too
  bool half_states = false;    // the optimizer's states are 16-bit ones
  OptimizerKind optimizer = OptimizerKind::kAdam;
  int64_t projection_rank = 0;  // matrices' gradients are projected to so many rows for it; 0: they are not
  Turns turns = {};
  int64_t micro_batch = 1;
  int64_t microbatches = 1;  // for each step
  bool hidden_dropout = false;
  bool attention_dropout = false;
  AttentionKernel attention = AttentionKernel::kFlash;
  bool mixer_kernels = false;  // linear attention and state spaces by kernels, and not by PyTorch's operators
  double score_copy_bytes = 0;  // for each score, where softmax is not one kernel
  bool attention_mask = false;  // a batch x sequence x sequence mask comes with each microbatch
  Recompute recompute = Recompute::kNone;
  RecomputeModules modules = {};
  int64_t recompute_layers = 1;        // recomputed together where recompute is full
  bool partition_checkpoints = false;  // kept inputs are divided over tensor-parallel ranks
  bool foreach_step = false;      // the optimizer works on all tensors at once, with a temporary for each
  bool loop_step = false;         // on one after the other, with two temporaries of the largest
  bool step_in_backward = false;  // each weight is updated as soon as its gradient is there
  bool step_graph = false;        // a captured CUDA graph runs the step and keeps its memory pool
  CapturedParts captured = {};
  MovedTensors moved = {};
  CrossEntropy cross_entropy = CrossEntropy::kVocabularyParallel;
  bool norm_in_fp32 = false;  // an RMSNorm that upcasts keeps fp32 copies
  Fp8 fp8 = {};
  FrozenWeights frozen = {};
  Adapter adapter = {};
  Preference preference = {};
  int64_t deferred_embedding_gradients = 0;  // microbatches whose output-projection gradient is put off
  TokenDispatcher dispatcher = TokenDispatcher::kAllGather;
  bool grouped_gemm = false;
  double expert_imbalance = 1.0;  // busiest rank's tokens over the mean
  bool overlaps_expert_communication = false;
};

// Of an element of a weight that no optimizer's copy stands beside.
inline double weight_bytes(const Training& training) {
  return training.precision == Precision::kFp32 || training.autocast ? 4 : 2;
}

// Adam of whole gradients, of all weights at once.
inline bool has_plain_adam(const Training& training) {
  return training.optimizer == OptimizerKind::kAdam && training.projection_rank == 0 &&
         !training.turns.fp32_copies;
}

// Parts of a matrix cannot be projected, and layers that take turns have no shards.
inline bool needs_whole_weights(const Training& training) {
  return training.projection_rank > 0 || training.turns.on();
}

// Whose data parallelism.
enum class DataParallelEngine { kTorch, kDeepspeed };

// Buffers of data parallelism. Sizes in elements, as DeepSpeed's keys are.
struct Communication {
  DataParallelEngine engine = DataParallelEngine::kTorch;
  bool gradients_are_views = false;  // DDP's gradient_as_bucket_view
  double reduce_bucket = 5e8;        // reduce_bucket_size
  int64_t reduce_buckets = 1;        // 2 where one is filled while another is reduced: overlap_comm
  double most_gathered = 1e9;        // stage3_max_live_parameters
  double prefetch = 5e7;             // stage3_prefetch_bucket_size
  bool keeps_gathered = false;       // autograd holds what the forward pass gathered
};

enum class Tier { kDevice, kHost, kNvme };

// Says what waits below the device and comes back for use.
struct Offload {
  Tier optimizer = Tier::kDevice;   // fp32 copies, states and gradients; the host updates
  Tier parameters = Tier::kDevice;  // of layers that are not in use
  Tier activations = Tier::kDevice;
  int64_t buffers = 4;         // pinned ones for each kind on its way to NVMe
  double buffer_bytes = 0;     // of one
  double host_bandwidth = 0;   // bytes a second between device and host
  double nvme_bandwidth = 0;   // bytes a second between host and NVMe
  double compute_seconds = 0;  // of a step; 0: not known
  double overlap = 1;          // the share of it that transfers hide behind

  bool any() const {
    return optimizer != Tier::kDevice || parameters != Tier::kDevice || activations != Tier::kDevice;
  }
};

// Holds what differs between versions of a framework and the libraries under it. A reader decides it from the
// machine and the date of the run; each field's history is in inputs/megatron_versions.cpp.
struct Behaviour {
  bool flash_saves_output_twice = false;
  double fused_loss_bytes_per_logit = 10;
  bool weighted_activation = true;         // routing weights are applied inside the expert, on the activation
  bool fused_weighted_activation = false;  // by one kernel that keeps no product
  bool keeps_gathered_tokens = false;      // each layer keeps tokens gathered over the expert tensor group
  bool keeps_masks = false;                // of one microbatch for each pipeline stage
  bool keeps_score_masks = false;          // of materialised scores, by each layer
  bool keeps_gathered_weights = false;   // a sharded model's root and layer units stay gathered between steps
  bool keeps_deferred_gradient = false;  // of the output projection, where it is put off
};

// Memory that is taken once and does not follow from the model.
struct Reserve {
  double cublas_workspace_bytes = 0;  // of one handle and stream
  int64_t cublas_workspaces = 2;
  double engine_workspace_bytes = 0;  // Transformer Engine's
  int64_t engine_workspaces = 1;
  double declared_bytes = 0;      // what the user knows of
  double context_bytes = 0;       // outside every allocator: CUDA's and the libraries' own
  double communicator_bytes = 0;  // outside every allocator: NCCL's
};

// What is done with a model of images; of no meaning for others. Sizes in pixels.
struct Imaging {
  int64_t height = 512;
  int64_t width = 512;
  bool generates = false;  // images are made, `training.micro_batch` at once; false: the denoiser is trained
  bool encodes = true;     // images and texts are encoded in each step, by parts that stay on the device
  bool guided = false;     // each image is computed with and without its text
  bool offloads = false;   // a part is on the device while it works, and no longer
  bool sliced = false;     // images are decoded one after the other
};

// The names under which a reader was given the sizes that can contradict each other.
struct SizeKeys {
  const char* gpus = "parallel.gpus";
  const char* tensor = "parallel.tensor";
  const char* pipeline = "parallel.pipeline";
  const char* virtual_stages = "parallel.virtual_stages";
  const char* context = "parallel.context";
  const char* expert = "parallel.expert";
  const char* expert_tensor = "parallel.expert_tensor";
  const char* instances = "parallel.replicas";
  const char* key_value_heads = "model.num_key_value_heads";
  const char* top_k = "model.num_experts_per_tok";
};

// Says what a person has to know beside the figures.
struct Notes {
  std::vector<std::string> assumptions = {};  // every default that was filled in
  std::vector<std::string> warnings = {};     // what the description says and the figures do not hold
};

// Everything an estimate follows from.
struct TrainingRun {
  Framework framework = Framework::kMegatron;
  Gpu gpu = Gpu::kOther;
  AllocatorModel allocator = AllocatorModel::kPytorch;
  Model model;
  ModelCode code = {};         // of transformers, where the framework is that
  ModelCode vision_code = {};  // of the tower of images before it
  Imaging imaging;
  Parallel parallel;
  Training training;
  Communication communication;
  Offload offload;
  Behaviour behaviour;
  Reserve reserve;
  SizeKeys keys;
  bool last_rank_only = false;  // Megatron logs the last rank's memory and no other
  Notes notes;
  std::string trainer = {};  // whose recipe it was read from, as --for names it; empty: nobody's
};

// The tensor-parallel share of the vocabulary, padded.
int64_t vocabulary_shard(const TrainingRun& run);

// One line that says which sizes contradict each other; empty where none do.
std::string contradiction(const TrainingRun& run);

}  // namespace spillway::estimator
