// The open models that a name is enough for. known_models.cpp explains the words of their sizes.
#include "estimator/inputs/known_models.h"

namespace spillway::estimator {
namespace {

constexpr std::string_view kLlama2 = "llama h=4096 f=11008 l=32 a=32 k=32 v=32000 p=4096";
constexpr std::string_view kLlama213 = "llama h=5120 f=13824 l=40 a=40 k=40 v=32000 p=4096";
constexpr std::string_view kLlama3 = "llama h=4096 f=14336 l=32 a=32 k=8 v=128256 p=8192";
constexpr std::string_view kLlama31 = "llama h=4096 f=14336 l=32 a=32 k=8 v=128256 p=131072";
constexpr std::string_view kLlama3170 = "llama h=8192 f=28672 l=80 a=64 k=8 v=128256 p=131072";
constexpr std::string_view kQwen05 = "qwen2 h=896 f=4864 l=24 a=14 k=2 v=151936 p=32768 tied=true";
constexpr std::string_view kQwen15 = "qwen2 h=1536 f=8960 l=28 a=12 k=2 v=151936 p=32768 tied=true";
constexpr std::string_view kQwen15Long = "qwen2 h=1536 f=8960 l=28 a=12 k=2 v=151936 p=131072 tied=true";
constexpr std::string_view kQwen3 = "qwen2 h=2048 f=11008 l=36 a=16 k=2 v=151936 p=32768 tied=true";
constexpr std::string_view kQwen7 = "qwen2 h=3584 f=18944 l=28 a=28 k=4 v=152064 p=32768";
constexpr std::string_view kQwen7Long = "qwen2 h=3584 f=18944 l=28 a=28 k=4 v=152064 p=131072";
constexpr std::string_view kQwen14 = "qwen2 h=5120 f=13824 l=48 a=40 k=8 v=152064 p=32768";
constexpr std::string_view kQwen14Long = "qwen2 h=5120 f=13824 l=48 a=40 k=8 v=152064 p=131072";
constexpr std::string_view kQwen32 = "qwen2 h=5120 f=27648 l=64 a=40 k=8 v=152064 p=32768";
constexpr std::string_view kQwen32Long = "qwen2 h=5120 f=27648 l=64 a=40 k=8 v=152064 p=131072";
constexpr std::string_view kQwen72 = "qwen2 h=8192 f=29568 l=80 a=64 k=8 v=152064 p=32768";
constexpr std::string_view kQwen72Long = "qwen2 h=8192 f=29568 l=80 a=64 k=8 v=152064 p=131072";
constexpr std::string_view kDeepseekV3 =
    "deepseek_v3 h=7168 f=18432 m=2048 l=61 a=128 k=128 q_lora_rank=1536 kv_lora_rank=512 "
    "qk_nope_head_dim=128 "
    "qk_rope_head_dim=64 v_head_dim=128 n_routed_experts=256 n_shared_experts=1 t=8 first_k_dense_replace=3 "
    "v=129280 p=163840";

constexpr std::string_view kQwen3527 =
    "qwen3_5_text h=5120 f=17408 l=64 a=24 k=4 d=256 v=248320 p=262144 linear_num_key_heads=16 "
    "linear_num_value_heads=48 linear_key_head_dim=128 linear_value_head_dim=128 linear_conv_kernel_dim=4 "
    "full=4";
constexpr std::string_view kQwen3535 =
    "qwen3_5_moe_text h=2048 m=512 l=40 a=16 k=2 d=256 e=256 t=8 v=248320 p=262144 "
    "shared_expert_intermediate_size=512 linear_num_key_heads=16 linear_num_value_heads=32 "
    "linear_key_head_dim=128 linear_value_head_dim=128 linear_conv_kernel_dim=4 full=4";

}  // namespace

const std::vector<KnownModel>& known_models() {
  static const std::vector<KnownModel> kModels = {
      {"llama-2-7b", "meta-llama/Llama-2-7b-hf", 6.738, kLlama2, SizesSource::kTable},
      {"llama-2-13b", "meta-llama/Llama-2-13b-hf", 13.016, kLlama213, SizesSource::kTable},
      {"llama-2-70b", "meta-llama/Llama-2-70b-hf", 68.977,
       "llama h=8192 f=28672 l=80 a=64 k=8 v=32000 p=4096", SizesSource::kTable},
      {"llama-3-8b", "meta-llama/Meta-Llama-3-8B", 8.030, kLlama3, SizesSource::kTable},
      {"llama-3-70b", "meta-llama/Meta-Llama-3-70B", 70.554,
       "llama h=8192 f=28672 l=80 a=64 k=8 v=128256 p=8192", SizesSource::kTable},
      {"llama-3.1-8b", "meta-llama/Llama-3.1-8B", 8.030, kLlama31, SizesSource::kConfig},
      {"llama-3.1-70b", "meta-llama/Llama-3.1-70B", 70.554, kLlama3170, SizesSource::kConfig},
      {"llama-3.1-405b", "meta-llama/Llama-3.1-405B", 405.853,
       "llama h=16384 f=53248 l=126 a=128 k=8 v=128256 p=131072", SizesSource::kConfig},
      {"llama-3.2-1b", "meta-llama/Llama-3.2-1B", 1.236,
       "llama h=2048 f=8192 l=16 a=32 k=8 d=64 v=128256 p=131072 tied=true", SizesSource::kConfig},
      {"llama-3.2-3b", "meta-llama/Llama-3.2-3B", 3.213,
       "llama h=3072 f=8192 l=28 a=24 k=8 d=128 v=128256 p=131072 tied=true", SizesSource::kConfig},
      {"llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", 70.554, kLlama3170, SizesSource::kTable},
      {"tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1.100,
       "llama h=2048 f=5632 l=22 a=32 k=4 v=32000 p=2048", SizesSource::kConfig},
      {"codellama-7b", "codellama/CodeLlama-7b-hf", 6.739,
       "llama h=4096 f=11008 l=32 a=32 k=32 v=32016 p=16384", SizesSource::kConfig},
      {"codellama-13b", "codellama/CodeLlama-13b-hf", 13.016,
       "llama h=5120 f=13824 l=40 a=40 k=40 v=32016 p=16384", SizesSource::kConfig},
      {"codellama-34b", "codellama/CodeLlama-34b-hf", 33.744,
       "llama h=8192 f=22016 l=48 a=64 k=8 v=32000 p=16384", SizesSource::kConfig},
      {"vicuna-7b", "lmsys/vicuna-7b-v1.5", 6.738, kLlama2, SizesSource::kNone},
      {"vicuna-13b", "lmsys/vicuna-13b-v1.5", 13.016, kLlama213, SizesSource::kNone},
      {"yi-6b", "01-ai/Yi-6B", 6.061, "llama h=4096 f=11008 l=32 a=32 k=4 v=64000 p=4096",
       SizesSource::kNone},
      {"yi-1.5-9b", "01-ai/Yi-1.5-9B", 8.829, "llama h=4096 f=11008 l=48 a=32 k=4 v=64000 p=4096",
       SizesSource::kNone},
      {"yi-34b", "01-ai/Yi-34B", 34.389, "llama h=7168 f=20480 l=60 a=56 k=8 v=64000 p=4096",
       SizesSource::kTable},
      {"smollm2-135m", "HuggingFaceTB/SmolLM2-135M", 0.1345,
       "llama h=576 f=1536 l=30 a=9 k=3 v=49152 p=8192 tied=true", SizesSource::kConfig},
      {"smollm2-360m", "HuggingFaceTB/SmolLM2-360M", 0.3618,
       "llama h=960 f=2560 l=32 a=15 k=5 v=49152 p=8192 tied=true", SizesSource::kConfig},
      {"smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B", 1.711,
       "llama h=2048 f=8192 l=24 a=32 k=32 v=49152 p=8192 tied=true", SizesSource::kTable},
      {"smollm3-3b", "HuggingFaceTB/SmolLM3-3B", 3.075,
       "smollm3 h=2048 f=11008 l=36 a=16 k=4 v=128256 p=65536 tied=true", SizesSource::kNone},
      {"nemotron-h-8b", "nvidia/Nemotron-H-8B-Base-8K", 8.101,
       "nemotron_h h=4096 f=21504 l=52 a=32 k=8 d=128 mamba_num_heads=128 mamba_head_dim=64 n_groups=8 "
       "ssm_state_size=128 v=131072 p=8192 "
       "hybrid_override_pattern=M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
       SizesSource::kNone},
      {"nemotron-nano-9b-v2", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8.888,
       "nemotron_h h=4480 f=15680 l=56 a=40 k=8 d=128 mamba_num_heads=128 mamba_head_dim=80 n_groups=8 "
       "ssm_state_size=128 v=131072 p=131072 "
       "hybrid_override_pattern=M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
       SizesSource::kNone},
      {"nemotron-3-nano-30b-a3b", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.578,
       "nemotron_h h=2688 f=1856 m=1856 l=52 a=32 k=2 d=128 mamba_num_heads=64 mamba_head_dim=64 n_groups=8 "
       "ssm_state_size=128 v=131072 p=262144 n_routed_experts=128 n_shared_experts=1 t=6 "
       "moe_shared_expert_intermediate_size=3712 "
       "hybrid_override_pattern=MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
       SizesSource::kNone},
      {"deepseek-coder-1.3b", "deepseek-ai/deepseek-coder-1.3b-base", 1.346,
       "llama h=2048 f=5504 l=24 a=16 k=16 v=32256 p=16384", SizesSource::kTable},
      {"deepseek-coder-6.7b", "deepseek-ai/deepseek-coder-6.7b-base", 6.740,
       "llama h=4096 f=11008 l=32 a=32 k=32 v=32256 p=16384", SizesSource::kNone},
      {"deepseek-coder-33b", "deepseek-ai/deepseek-coder-33b-base", 33.343,
       "llama h=7168 f=19200 l=62 a=56 k=8 v=32256 p=16384", SizesSource::kNone},
      {"deepseek-llm-7b", "deepseek-ai/deepseek-llm-7b-base", 6.910,
       "llama h=4096 f=11008 l=30 a=32 k=32 v=102400 p=4096", SizesSource::kNone},
      {"deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", 15.706,
       "deepseek_v2 h=2048 f=10944 m=1408 l=27 a=16 k=16 q_lora_rank=null kv_lora_rank=512 "
       "qk_nope_head_dim=128 "
       "qk_rope_head_dim=64 v_head_dim=128 n_routed_experts=64 n_shared_experts=2 t=6 "
       "first_k_dense_replace=1 "
       "v=102400 p=163840",
       SizesSource::kConfig},
      {"deepseek-v2", "deepseek-ai/DeepSeek-V2", 235.74,
       "deepseek_v2 h=5120 f=12288 m=1536 l=60 a=128 k=128 q_lora_rank=1536 kv_lora_rank=512 "
       "qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128 n_routed_experts=160 n_shared_experts=2 t=6 "
       "first_k_dense_replace=1 v=102400 p=163840",
       SizesSource::kConfig},
      {"deepseek-v3", "deepseek-ai/DeepSeek-V3", 671.03, kDeepseekV3, SizesSource::kConfig},
      {"deepseek-r1", "deepseek-ai/DeepSeek-R1", 671.03, kDeepseekV3, SizesSource::kConfig},
      {"deepseek-r1-distill-qwen-1.5b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.777,
       "qwen2 h=1536 f=8960 l=28 a=12 k=2 v=151936 p=131072 tied=false", SizesSource::kConfig},
      {"deepseek-r1-distill-qwen-7b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 7.616,
       "qwen2 h=3584 f=18944 l=28 a=28 k=4 v=152064 p=131072", SizesSource::kNone},
      {"deepseek-r1-distill-llama-8b", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 8.030, kLlama31,
       SizesSource::kTable},
      {"deepseek-r1-distill-qwen-14b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 14.770,
       "qwen2 h=5120 f=13824 l=48 a=40 k=8 v=152064 p=131072", SizesSource::kNone},
      {"deepseek-r1-distill-qwen-32b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 32.764,
       "qwen2 h=5120 f=27648 l=64 a=40 k=8 v=152064 p=131072", SizesSource::kNone},
      {"deepseek-r1-distill-llama-70b", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", 70.554, kLlama3170,
       SizesSource::kTable},
      {"kimi-k2", "moonshotai/Kimi-K2-Instruct", 1026.4,
       "deepseek_v3 h=7168 f=18432 m=2048 l=61 a=64 k=64 q_lora_rank=1536 kv_lora_rank=512 "
       "qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128 n_routed_experts=384 n_shared_experts=1 t=8 "
       "first_k_dense_replace=1 v=163840 p=131072",
       SizesSource::kConfig},
      {"mistral-7b", "mistralai/Mistral-7B-v0.1", 7.242,
       "mistral h=4096 f=14336 l=32 a=32 k=8 v=32000 p=32768 sliding_window=4096", SizesSource::kTable},
      {"mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3", 7.248,
       "mistral h=4096 f=14336 l=32 a=32 k=8 v=32768 p=32768 sliding_window=null", SizesSource::kConfig},
      {"zephyr-7b", "HuggingFaceH4/zephyr-7b-beta", 7.242,
       "mistral h=4096 f=14336 l=32 a=32 k=8 v=32000 p=32768 sliding_window=4096", SizesSource::kNone},
      {"ministral-8b", "mistralai/Ministral-8B-Instruct-2410", 8.020,
       "mistral h=4096 f=12288 l=36 a=32 k=8 d=128 v=131072 p=32768 sliding_window=32768",
       SizesSource::kNone},
      {"mistral-nemo", "mistralai/Mistral-Nemo-Base-2407", 12.248,
       "mistral h=5120 f=14336 l=40 a=32 k=8 d=128 v=131072 p=128000 sliding_window=null",
       SizesSource::kConfig},
      {"mistral-small-22b", "mistralai/Mistral-Small-Instruct-2409", 22.247,
       "mistral h=6144 f=16384 l=56 a=48 k=8 d=128 v=32768 p=32768 sliding_window=null", SizesSource::kTable},
      {"codestral-22b", "mistralai/Codestral-22B-v0.1", 22.247,
       "mistral h=6144 f=16384 l=56 a=48 k=8 d=128 v=32768 p=32768 sliding_window=null", SizesSource::kNone},
      {"mistral-small-24b", "mistralai/Mistral-Small-24B-Base-2501", 23.572,
       "mistral h=5120 f=32768 l=40 a=32 k=8 d=128 v=131072 p=32768 sliding_window=null",
       SizesSource::kTable},
      {"mistral-large", "mistralai/Mistral-Large-Instruct-2407", 122.61,
       "mistral h=12288 f=28672 l=88 a=96 k=8 d=128 v=32768 p=131072 sliding_window=null",
       SizesSource::kNone},
      {"mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", 46.703,
       "mixtral h=4096 f=14336 l=32 a=32 k=8 v=32000 p=32768 num_local_experts=8 t=2", SizesSource::kConfig},
      {"mixtral-8x22b", "mistralai/Mixtral-8x22B-v0.1", 140.62,
       "mixtral h=6144 f=16384 l=56 a=48 k=8 v=32000 p=65536 num_local_experts=8 t=2", SizesSource::kConfig},
      {"qwen2-0.5b", "Qwen/Qwen2-0.5B", 0.494, kQwen05, SizesSource::kConfig},
      {"qwen2-1.5b", "Qwen/Qwen2-1.5B", 1.544, kQwen15, SizesSource::kConfig},
      {"qwen2-7b", "Qwen/Qwen2-7B", 7.616, kQwen7, SizesSource::kConfig},
      {"qwen2-72b", "Qwen/Qwen2-72B", 72.706, kQwen72, SizesSource::kNone},
      {"qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", 0.494, kQwen05, SizesSource::kTable},
      {"qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", 1.544, kQwen15Long, SizesSource::kTable},
      {"qwen2.5-1.5b-instruct", "Qwen/Qwen2.5-1.5B-Instruct", 1.544, kQwen15, SizesSource::kNone},
      {"qwen2.5-3b", "Qwen/Qwen2.5-3B", 3.086, kQwen3, SizesSource::kConfig},
      {"qwen2.5-7b", "Qwen/Qwen2.5-7B", 7.616, kQwen7Long, SizesSource::kConfig},
      {"qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct", 7.616, kQwen7, SizesSource::kConfig},
      {"qwen2.5-14b", "Qwen/Qwen2.5-14B", 14.770, kQwen14Long, SizesSource::kConfig},
      {"qwen2.5-14b-instruct", "Qwen/Qwen2.5-14B-Instruct", 14.770, kQwen14, SizesSource::kNone},
      {"qwen2.5-32b", "Qwen/Qwen2.5-32B", 32.764, kQwen32Long, SizesSource::kConfig},
      {"qwen2.5-32b-instruct", "Qwen/Qwen2.5-32B-Instruct", 32.764, kQwen32, SizesSource::kConfig},
      {"qwen2.5-72b", "Qwen/Qwen2.5-72B", 72.706, kQwen72Long, SizesSource::kTable},
      {"qwen2.5-72b-instruct", "Qwen/Qwen2.5-72B-Instruct", 72.706, kQwen72, SizesSource::kNone},
      {"qwen2.5-coder-1.5b", "Qwen/Qwen2.5-Coder-1.5B", 1.544, kQwen15, SizesSource::kTable},
      {"qwen2.5-coder-7b", "Qwen/Qwen2.5-Coder-7B", 7.616, kQwen7, SizesSource::kTable},
      {"qwen2.5-coder-32b", "Qwen/Qwen2.5-Coder-32B", 32.764, kQwen32, SizesSource::kTable},
      {"qwq-32b", "Qwen/QwQ-32B", 32.764, "qwen2 h=5120 f=27648 l=64 a=40 k=8 v=152064 p=40960",
       SizesSource::kNone},
      {"qwen3-0.6b", "Qwen/Qwen3-0.6B", 0.596,
       "qwen3 h=1024 f=3072 l=28 a=16 k=8 d=128 v=151936 p=40960 tied=true", SizesSource::kConfig},
      {"qwen3-1.7b", "Qwen/Qwen3-1.7B", 1.721,
       "qwen3 h=2048 f=6144 l=28 a=16 k=8 d=128 v=151936 p=40960 tied=true", SizesSource::kConfig},
      {"qwen3-4b", "Qwen/Qwen3-4B", 4.022,
       "qwen3 h=2560 f=9728 l=36 a=32 k=8 d=128 v=151936 p=40960 tied=true", SizesSource::kConfig},
      {"qwen3-8b", "Qwen/Qwen3-8B", 8.191, "qwen3 h=4096 f=12288 l=36 a=32 k=8 d=128 v=151936 p=40960",
       SizesSource::kConfig},
      {"qwen3-14b", "Qwen/Qwen3-14B", 14.768, "qwen3 h=5120 f=17408 l=40 a=40 k=8 d=128 v=151936 p=40960",
       SizesSource::kConfig},
      {"qwen3-32b", "Qwen/Qwen3-32B", 32.762, "qwen3 h=5120 f=25600 l=64 a=64 k=8 d=128 v=151936 p=40960",
       SizesSource::kConfig},
      {"qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 30.532,
       "qwen3_moe h=2048 f=6144 m=768 l=48 a=32 k=4 d=128 e=128 t=8 v=151936 p=40960", SizesSource::kConfig},
      {"qwen3-coder-30b-a3b", "Qwen/Qwen3-Coder-30B-A3B-Instruct", 30.532,
       "qwen3_moe h=2048 f=6144 m=768 l=48 a=32 k=4 d=128 e=128 t=8 v=151936 p=262144", SizesSource::kNone},
      {"qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", 235.094,
       "qwen3_moe h=4096 f=12288 m=1536 l=94 a=64 k=4 d=128 e=128 t=8 v=151936 p=40960",
       SizesSource::kConfig},
      {"qwen3-coder-480b-a35b", "Qwen/Qwen3-Coder-480B-A35B-Instruct", 480.15,
       "qwen3_moe h=6144 f=8192 m=2560 l=62 a=96 k=8 d=128 e=160 t=8 v=151936 p=262144",
       SizesSource::kConfig},
      {"qwen3-next-80b-a3b", "Qwen/Qwen3-Next-80B-A3B-Instruct", 79.67,
       "qwen3_next h=2048 f=5120 m=512 l=48 a=16 k=2 d=256 e=512 t=10 shared_expert_intermediate_size=512 "
       "linear_num_key_heads=16 linear_num_value_heads=32 linear_key_head_dim=128 linear_value_head_dim=128 "
       "linear_conv_kernel_dim=4 v=151936 p=262144 full=4",
       SizesSource::kConfig},
      {"qwen3.5-27b", "Qwen/Qwen3.5-27B", 26.896, kQwen3527, SizesSource::kConfig},
      {"qwen3.5-35b-a3b", "Qwen/Qwen3.5-35B-A3B", 34.661, kQwen3535, SizesSource::kTable},
      {"qwen3.5-122b-a10b", "Qwen/Qwen3.5-122B-A10B", 122.112,
       "qwen3_5_moe_text h=3072 m=1024 l=48 a=32 k=2 d=256 e=256 t=8 v=248320 p=262144 "
       "shared_expert_intermediate_size=1024 linear_num_key_heads=16 linear_num_value_heads=64 "
       "linear_key_head_dim=128 linear_value_head_dim=128 linear_conv_kernel_dim=4 full=4",
       SizesSource::kTable},
      {"qwen3.5-397b-a17b", "Qwen/Qwen3.5-397B-A17B", 396.346,
       "qwen3_5_moe_text h=4096 m=1024 l=60 a=32 k=2 d=256 e=512 t=10 v=248320 p=262144 "
       "shared_expert_intermediate_size=1024 linear_num_key_heads=16 linear_num_value_heads=64 "
       "linear_key_head_dim=128 linear_value_head_dim=128 linear_conv_kernel_dim=4 full=4",
       SizesSource::kTable},
      {"qwen3.6-27b", "Qwen/Qwen3.6-27B", 26.896, kQwen3527, SizesSource::kTable},
      {"qwen3.6-35b-a3b", "Qwen/Qwen3.6-35B-A3B", 34.661, kQwen3535, SizesSource::kTable},
      {"qwen3.8-27b", "Qwen/Qwen3.8-27B", 26.896, kQwen3527, SizesSource::kTable},
      {"gemma-2b", "google/gemma-2b", 2.506, "gemma h=2048 f=16384 l=18 a=8 k=1 d=256 v=256000 p=8192",
       SizesSource::kTable},
      {"gemma-7b", "google/gemma-7b", 8.538, "gemma h=3072 f=24576 l=28 a=16 k=16 d=256 v=256000 p=8192",
       SizesSource::kTable},
      {"gemma-2-2b", "google/gemma-2-2b", 2.614,
       "gemma2 h=2304 f=9216 l=26 a=8 k=4 d=256 v=256000 p=8192 sliding_window=4096", SizesSource::kConfig},
      {"gemma-2-9b", "google/gemma-2-9b", 9.242,
       "gemma2 h=3584 f=14336 l=42 a=16 k=8 d=256 v=256000 p=8192 sliding_window=4096", SizesSource::kConfig},
      {"gemma-2-27b", "google/gemma-2-27b", 27.227,
       "gemma2 h=4608 f=36864 l=46 a=32 k=16 d=128 v=256000 p=8192 sliding_window=4096",
       SizesSource::kConfig},
      {"qwen2-vl-2b", "Qwen/Qwen2-VL-2B-Instruct", 2.209,
       "qwen2_vl h=1536 f=8960 l=28 a=12 k=2 v=151936 p=32768 tied=true vision_config.depth=32 "
       "vision_config.embed_dim=1280 vision_config.mlp_ratio=4 vision_config.num_heads=16 "
       "vision_config.in_chans=3 vision_config.patch_size=14 vision_config.spatial_merge_size=2 "
       "vision_config.temporal_patch_size=2 vision_config.hidden_size=1536",
       SizesSource::kNone},
      {"qwen2-vl-7b", "Qwen/Qwen2-VL-7B-Instruct", 8.291,
       "qwen2_vl h=3584 f=18944 l=28 a=28 k=4 v=152064 p=32768 vision_config.depth=32 "
       "vision_config.embed_dim=1280 vision_config.mlp_ratio=4 vision_config.num_heads=16 "
       "vision_config.in_chans=3 vision_config.patch_size=14 vision_config.spatial_merge_size=2 "
       "vision_config.temporal_patch_size=2 vision_config.hidden_size=3584",
       SizesSource::kNone},
      {"qwen2-vl-72b", "Qwen/Qwen2-VL-72B-Instruct", 73.406,
       "qwen2_vl h=8192 f=29568 l=80 a=64 k=8 v=152064 p=32768 vision_config.depth=32 "
       "vision_config.embed_dim=1280 vision_config.mlp_ratio=4 vision_config.num_heads=16 "
       "vision_config.in_chans=3 vision_config.patch_size=14 vision_config.spatial_merge_size=2 "
       "vision_config.temporal_patch_size=2 vision_config.hidden_size=8192",
       SizesSource::kNone},
      {"qwen2.5-vl-3b", "Qwen/Qwen2.5-VL-3B-Instruct", 3.755,
       "qwen2_5_vl h=2048 f=11008 l=36 a=16 k=2 v=151936 p=128000 tied=true vision_config.depth=32 "
       "vision_config.hidden_size=1280 vision_config.num_heads=16 vision_config.in_chans=3 "
       "vision_config.patch_size=14 vision_config.spatial_merge_size=2 "
       "vision_config.temporal_patch_size=2 vision_config.intermediate_size=3420 "
       "vision_config.out_hidden_size=2048",
       SizesSource::kNone},
      {"qwen2.5-vl-7b", "Qwen/Qwen2.5-VL-7B-Instruct", 8.292,
       "qwen2_5_vl h=3584 f=18944 l=28 a=28 k=4 v=152064 p=128000 vision_config.depth=32 "
       "vision_config.hidden_size=1280 vision_config.num_heads=16 vision_config.in_chans=3 "
       "vision_config.patch_size=14 vision_config.spatial_merge_size=2 "
       "vision_config.temporal_patch_size=2 vision_config.intermediate_size=3420 "
       "vision_config.out_hidden_size=3584",
       SizesSource::kNone},
      {"qwen2.5-vl-32b", "Qwen/Qwen2.5-VL-32B-Instruct", 33.453,
       "qwen2_5_vl h=5120 f=27648 l=64 a=40 k=8 v=152064 p=128000 vision_config.depth=32 "
       "vision_config.hidden_size=1280 vision_config.num_heads=16 vision_config.in_chans=3 "
       "vision_config.patch_size=14 vision_config.spatial_merge_size=2 "
       "vision_config.temporal_patch_size=2 vision_config.intermediate_size=3456 "
       "vision_config.out_hidden_size=5120",
       SizesSource::kNone},
      {"qwen2.5-vl-72b", "Qwen/Qwen2.5-VL-72B-Instruct", 73.411,
       "qwen2_5_vl h=8192 f=29568 l=80 a=64 k=8 v=152064 p=128000 vision_config.depth=32 "
       "vision_config.hidden_size=1280 vision_config.num_heads=16 vision_config.in_chans=3 "
       "vision_config.patch_size=14 vision_config.spatial_merge_size=2 "
       "vision_config.temporal_patch_size=2 vision_config.intermediate_size=3456 "
       "vision_config.out_hidden_size=8192",
       SizesSource::kNone},
      {"gemma-3-270m", "google/gemma-3-270m", 0.2681,
       "gemma3_text h=640 f=2048 l=18 a=4 k=1 d=256 v=262144 p=32768 sliding_window=512",
       SizesSource::kTable},
      {"gemma-3-1b", "google/gemma-3-1b-pt", 1.000,
       "gemma3_text h=1152 f=6912 l=26 a=4 k=1 d=256 v=262144 p=32768 sliding_window=512",
       SizesSource::kConfig},
      {"gemma-3-4b", "google/gemma-3-4b-pt", 3.880,
       "gemma3_text h=2560 f=10240 l=34 a=8 k=4 d=256 v=262208 p=131072 sliding_window=1024",
       SizesSource::kTable},
      {"gemma-3-12b", "google/gemma-3-12b-pt", 11.766,
       "gemma3_text h=3840 f=15360 l=48 a=16 k=8 d=256 v=262208 p=131072 sliding_window=1024",
       SizesSource::kTable},
      {"gemma-3-27b", "google/gemma-3-27b-pt", 27.009,
       "gemma3_text h=5376 f=21504 l=62 a=32 k=16 d=128 v=262208 p=131072 sliding_window=1024",
       SizesSource::kTable},
      {"gemma-4-e2b", "google/gemma-4-E2B", 4.629,
       "gemma4_text h=1536 f=6144 l=35 a=8 k=1 d=256 v=262144 p=131072 tied=true full=5 sliding_window=512 "
       "num_kv_shared_layers=20 use_double_wide_mlp=true final_logit_softcapping=30",
       SizesSource::kConfig},
      {"gemma-4-e4b", "google/gemma-4-E4B", 7.463,
       "gemma4_text h=2560 f=10240 l=42 a=8 k=2 d=256 v=262144 p=131072 tied=true full=6 sliding_window=512 "
       "num_kv_shared_layers=18 final_logit_softcapping=30",
       SizesSource::kTable},
      {"gemma-4-26b-a4b", "google/gemma-4-26B-A4B", 25.233,
       "gemma4_text h=2816 f=2112 l=30 a=16 k=8 d=256 v=262144 p=262144 tied=true full=6 sliding_window=1024 "
       "attention_k_eq_v=true num_global_key_value_heads=2 hidden_size_per_layer_input=0 "
       "enable_moe_block=true num_experts=128 top_k_experts=8 moe_intermediate_size=704 "
       "final_logit_softcapping=30",
       SizesSource::kConfig},
      {"gemma-4-31b", "google/gemma-4-31B", 30.697,
       "gemma4_text h=5376 f=21504 l=60 a=32 k=16 d=256 v=262144 p=262144 tied=true full=6 "
       "sliding_window=1024 "
       "attention_k_eq_v=true num_global_key_value_heads=4 hidden_size_per_layer_input=0 "
       "final_logit_softcapping=30",
       SizesSource::kConfig},
      {"phi-1.5", "microsoft/phi-1_5", 1.418, "phi h=2048 f=8192 l=24 a=32 k=32 v=51200 p=2048",
       SizesSource::kTable},
      {"phi-2", "microsoft/phi-2", 2.780, "phi h=2560 f=10240 l=32 a=32 k=32 v=51200 p=2048",
       SizesSource::kTable},
      {"phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", 3.821,
       "phi3 h=3072 f=8192 l=32 a=32 k=32 v=32064 p=4096 sliding_window=2047", SizesSource::kConfig},
      {"phi-3-medium", "microsoft/Phi-3-medium-4k-instruct", 13.960,
       "phi3 h=5120 f=17920 l=40 a=40 k=10 v=32064 p=4096 sliding_window=2047", SizesSource::kNone},
      {"phi-4", "microsoft/phi-4", 14.660,
       "phi3 h=5120 f=17920 l=40 a=40 k=10 v=100352 p=16384 sliding_window=null", SizesSource::kConfig},
      {"phi-4-mini", "microsoft/Phi-4-mini-instruct", 3.836,
       "phi3 h=3072 f=8192 l=32 a=24 k=8 v=200064 p=131072 tied=true sliding_window=262144",
       SizesSource::kConfig},
      {"gpt-oss-20b", "openai/gpt-oss-20b", 20.915,
       "gpt_oss h=2880 f=2880 l=24 a=64 k=8 d=64 num_local_experts=32 t=4 v=201088 p=131072 "
       "sliding_window=128",
       SizesSource::kConfig},
      {"gpt-oss-120b", "openai/gpt-oss-120b", 116.829,
       "gpt_oss h=2880 f=2880 l=36 a=64 k=8 d=64 num_local_experts=128 t=4 v=201088 p=131072 "
       "sliding_window=128",
       SizesSource::kConfig},
      {"gpt2", "openai-community/gpt2", 0.1244,
       "gpt2 n_embd=768 n_layer=12 n_head=12 v=50257 n_positions=1024", SizesSource::kConfig},
      {"gpt2-medium", "openai-community/gpt2-medium", 0.3548,
       "gpt2 n_embd=1024 n_layer=24 n_head=16 v=50257 n_positions=1024", SizesSource::kConfig},
      {"gpt2-large", "openai-community/gpt2-large", 0.7740,
       "gpt2 n_embd=1280 n_layer=36 n_head=20 v=50257 n_positions=1024", SizesSource::kTable},
      {"gpt2-xl", "openai-community/gpt2-xl", 1.5576,
       "gpt2 n_embd=1600 n_layer=48 n_head=25 v=50257 n_positions=1024", SizesSource::kTable},
      {"gpt-neox-20b", "EleutherAI/gpt-neox-20b", 20.555, "gpt_neox h=6144 f=24576 l=44 a=64 v=50432 p=2048",
       SizesSource::kConfig},
      {"gpt-j-6b", "EleutherAI/gpt-j-6b", 6.051,
       "gptj n_embd=4096 n_inner=16384 n_layer=28 n_head=16 v=50400 n_positions=2048", SizesSource::kTable},
      {"pythia-1.4b", "EleutherAI/pythia-1.4b", 1.4146, "gpt_neox h=2048 f=8192 l=24 a=16 v=50304 p=2048",
       SizesSource::kTable},
      {"pythia-6.9b", "EleutherAI/pythia-6.9b", 6.857, "gpt_neox h=4096 f=16384 l=32 a=32 v=50432 p=2048",
       SizesSource::kTable},
      {"pythia-12b", "EleutherAI/pythia-12b", 11.846, "gpt_neox h=5120 f=20480 l=36 a=40 v=50688 p=2048",
       SizesSource::kTable},
      {"opt-125m", "facebook/opt-125m", 0.1252, "opt h=768 ffn_dim=3072 l=12 a=12 v=50272 p=2048",
       SizesSource::kTable},
      {"opt-1.3b", "facebook/opt-1.3b", 1.3158, "opt h=2048 ffn_dim=8192 l=24 a=32 v=50272 p=2048",
       SizesSource::kTable},
      {"opt-6.7b", "facebook/opt-6.7b", 6.658, "opt h=4096 ffn_dim=16384 l=32 a=32 v=50272 p=2048",
       SizesSource::kTable},
      {"opt-13b", "facebook/opt-13b", 12.853, "opt h=5120 ffn_dim=20480 l=40 a=40 v=50272 p=2048",
       SizesSource::kTable},
      {"opt-30b", "facebook/opt-30b", 29.975, "opt h=7168 ffn_dim=28672 l=48 a=56 v=50272 p=2048",
       SizesSource::kNone},
      {"bloom-560m", "bigscience/bloom-560m", 0.5592, "bloom h=1024 n_layer=24 n_head=16 v=250880",
       SizesSource::kTable},
      {"bloom-7b1", "bigscience/bloom-7b1", 7.069, "bloom h=4096 n_layer=30 n_head=32 v=250880",
       SizesSource::kConfig},
      {"bloom", "bigscience/bloom", 176.25, "bloom h=14336 n_layer=70 n_head=112 v=250880",
       SizesSource::kConfig},
      {"falcon-7b", "tiiuae/falcon-7b", 6.922,
       "falcon h=4544 l=32 a=71 v=65024 p=2048 multi_query=true parallel_attn=true", SizesSource::kTable},
      {"starcoder2-3b", "bigcode/starcoder2-3b", 3.030,
       "starcoder2 h=3072 f=12288 l=30 a=24 k=2 v=49152 p=16384 use_bias=true sliding_window=4096",
       SizesSource::kNone},
      {"starcoder2-7b", "bigcode/starcoder2-7b", 7.174,
       "starcoder2 h=4608 f=18432 l=32 a=36 k=4 v=49152 p=16384 use_bias=true sliding_window=4096",
       SizesSource::kConfig},
      {"stablelm-2-1.6b", "stabilityai/stablelm-2-1_6b", 1.6445,
       "stablelm h=2048 f=5632 l=24 a=32 k=32 v=100352 p=4096 use_qkv_bias=true", SizesSource::kConfig},
      {"olmo-2-7b", "allenai/OLMo-2-1124-7B", 7.299, "olmo2 h=4096 f=11008 l=32 a=32 k=32 v=100352 p=4096",
       SizesSource::kConfig},
      {"olmo-2-13b", "allenai/OLMo-2-1124-13B", 13.716, "olmo2 h=5120 f=13824 l=40 a=40 k=40 v=100352 p=4096",
       SizesSource::kConfig},
      {"olmo-2-32b", "allenai/OLMo-2-0325-32B", 32.234, "olmo2 h=5120 f=27648 l=64 a=40 k=8 v=100352 p=4096",
       SizesSource::kConfig},
      {"olmoe-1b-7b", "allenai/OLMoE-1B-7B-0924", 6.919,
       "olmoe h=2048 f=1024 l=16 a=16 k=16 e=64 t=8 v=50304 p=4096", SizesSource::kTable},
      {"glm-4-9b", "zai-org/glm-4-9b-chat-hf", 9.400,
       "glm h=4096 f=13696 l=40 a=32 k=2 d=128 v=151552 p=131072", SizesSource::kTable},
      {"glm-4-32b", "zai-org/GLM-4-32B-0414", 32.566,
       "glm4 h=6144 f=23040 l=61 a=48 k=2 d=128 v=151552 p=32768 attention_bias=false", SizesSource::kNone},
      {"glm-4.5-air", "zai-org/GLM-4.5-Air", 106.85,
       "glm4_moe h=4096 f=10944 m=1408 l=46 a=96 k=8 d=128 n_routed_experts=128 n_shared_experts=1 t=8 "
       "first_k_dense_replace=1 v=151552 p=131072 attention_bias=true use_qk_norm=false",
       SizesSource::kConfig},
      {"granite-3.1-2b", "ibm-granite/granite-3.1-2b-base", 2.534,
       "granite h=2048 f=8192 l=40 a=32 k=8 v=49155 p=131072 tied=true", SizesSource::kNone},
      {"granite-3.1-8b", "ibm-granite/granite-3.1-8b-base", 8.171,
       "granite h=4096 f=12800 l=40 a=32 k=8 v=49155 p=131072 tied=true", SizesSource::kNone},
      {"command-r", "CohereLabs/c4ai-command-r-v01", 34.981,
       "cohere h=8192 f=22528 l=40 a=64 k=64 v=256000 p=8192", SizesSource::kTable},
      {"command-r7b", "CohereLabs/c4ai-command-r7b-12-2024", 8.028,
       "cohere2 h=4096 f=14336 l=32 a=32 k=8 v=256000 p=132096 sliding_window=4096", SizesSource::kNone},
      {"ernie-4.5-0.3b", "baidu/ERNIE-4.5-0.3B-PT", 0.361,
       "ernie4_5 h=1024 f=3072 l=18 a=16 k=2 d=128 v=103424 p=131072 tied=true", SizesSource::kConfig},
      {"ernie-4.5-21b-a3b", "baidu/ERNIE-4.5-21B-A3B-PT", 21.83,
       "ernie4_5_moe h=2560 f=12288 m=1536 l=28 a=20 k=4 moe_num_experts=64 moe_k=6 moe_num_shared_experts=2 "
       "moe_layer_start_index=1 v=103424 p=131072 tied=true",
       SizesSource::kConfig},
      {"seed-oss-36b", "ByteDance-Seed/Seed-OSS-36B-Base", 36.15,
       "seed_oss h=5120 f=27648 l=64 a=80 k=8 d=128 v=155136 p=524288", SizesSource::kTable},
      {"minimax-m2", "MiniMaxAI/MiniMax-M2", 228.7,
       "minimax_m2 h=3072 f=1536 l=62 a=48 k=8 d=128 num_local_experts=256 t=8 v=200064 p=196608",
       SizesSource::kTable},
      {"mamba-2.8b", "state-spaces/mamba-2.8b-hf", 2.768,
       "mamba h=2560 l=64 state_size=16 expand=2 conv_kernel=4 time_step_rank=160 v=50280",
       SizesSource::kConfig},
      {"falcon-mamba-7b", "tiiuae/falcon-mamba-7b", 7.273,
       "falcon_mamba h=4096 f=8192 l=64 state_size=16 expand=16 conv_kernel=4 time_step_rank=256 v=65024 "
       "tied=false",
       SizesSource::kConfig},
      {"bert-base", "google-bert/bert-base-uncased", 0.1095, "bert h=768 f=3072 l=12 a=12 v=30522 p=512",
       SizesSource::kTable},
      {"bert-large", "google-bert/bert-large-uncased", 0.335, "bert h=1024 f=4096 l=24 a=16 v=30522 p=512",
       SizesSource::kTable},
      {"roberta-base", "FacebookAI/roberta-base", 0.1247,
       "roberta h=768 f=3072 l=12 a=12 v=50265 p=514 type_vocab_size=1", SizesSource::kTable},
      {"xlm-roberta-base", "FacebookAI/xlm-roberta-base", 0.278,
       "xlm-roberta h=768 f=3072 l=12 a=12 v=250002 p=514 type_vocab_size=1", SizesSource::kTable},
      {"t5-base", "google-t5/t5-base", 0.2229,
       "t5 d_model=768 d_ff=3072 num_layers=12 num_heads=12 d_kv=64 v=32128 n_positions=512",
       SizesSource::kNone},
      {"t5-large", "google-t5/t5-large", 0.7377,
       "t5 d_model=1024 d_ff=4096 num_layers=24 num_heads=16 d_kv=64 v=32128 n_positions=512",
       SizesSource::kNone},
      {"flan-t5-xl", "google/flan-t5-xl", 2.850,
       "t5 d_model=2048 d_ff=5120 num_layers=24 num_heads=32 d_kv=64 v=32128 n_positions=512 "
       "feed_forward_proj=gated-gelu is_gated_act=true tied=false",
       SizesSource::kNone},
      {"flan-t5-xxl", "google/flan-t5-xxl", 11.135,
       "t5 d_model=4096 d_ff=10240 num_layers=24 num_heads=64 d_kv=64 v=32128 n_positions=512 "
       "feed_forward_proj=gated-gelu is_gated_act=true tied=false",
       SizesSource::kNone},
      {"sd-1.5", "stable-diffusion-v1-5/stable-diffusion-v1-5", 1.066,
       "StableDiffusionPipeline unet._class_name=UNet2DConditionModel "
       "unet.block_out_channels=[320,640,1280,1280] unet.cross_attention_dim=768 "
       "unet.attention_head_dim=8 unet.sample_size=64 vae=@vae-4 text_encoder=@clip-l",
       SizesSource::kConfig},
      {"sd-2.1", "stabilityai/stable-diffusion-2-1", 1.290,
       "StableDiffusionPipeline unet._class_name=UNet2DConditionModel "
       "unet.block_out_channels=[320,640,1280,1280] unet.cross_attention_dim=1024 "
       "unet.attention_head_dim=[5,10,20,20] unet.use_linear_projection=true unet.sample_size=96 vae=@vae-4 "
       "text_encoder=@clip-h",
       SizesSource::kConfig},
      {"sdxl", "stabilityai/stable-diffusion-xl-base-1.0", 3.469,
       "StableDiffusionXLPipeline unet._class_name=UNet2DConditionModel "
       "unet.block_out_channels=[320,640,1280] unet.cross_attention_dim=2048 "
       "unet.attention_head_dim=[5,10,20] unet.transformer_layers_per_block=[1,2,10] "
       "unet.use_linear_projection=true unet.addition_embed_type=text_time "
       "unet.projection_class_embeddings_input_dim=2816 unet.sample_size=128 "
       "unet.down_block_types=[\"DownBlock2D\",\"CrossAttnDownBlock2D\",\"CrossAttnDownBlock2D\"] "
       "unet.up_block_types=[\"CrossAttnUpBlock2D\",\"CrossAttnUpBlock2D\",\"UpBlock2D\"] vae=@vae-4 "
       "text_encoder=@clip-l text_encoder_2=@clip-g",
       SizesSource::kConfig},
      {"sd-3-medium", "stabilityai/stable-diffusion-3-medium-diffusers", 7.693,
       "StableDiffusion3Pipeline transformer._class_name=SD3Transformer2DModel transformer.num_layers=24 "
       "transformer.num_attention_heads=24 "
       "transformer.attention_head_dim=64 transformer.joint_attention_dim=4096 "
       "transformer.caption_projection_dim=1536 transformer.pooled_projection_dim=2048 "
       "transformer.pos_embed_max_size=192 transformer.sample_size=128 vae=@vae-16 "
       "text_encoder=@clip-l-projected text_encoder_2=@clip-g text_encoder_3=@t5-xxl",
       SizesSource::kTable},
      {"sd-3.5-medium", "stabilityai/stable-diffusion-3.5-medium", 7.908,
       "StableDiffusion3Pipeline transformer._class_name=SD3Transformer2DModel transformer.num_layers=24 "
       "transformer.num_attention_heads=24 "
       "transformer.attention_head_dim=64 transformer.joint_attention_dim=4096 "
       "transformer.caption_projection_dim=1536 transformer.pooled_projection_dim=2048 "
       "transformer.pos_embed_max_size=384 transformer.sample_size=128 transformer.qk_norm=rms_norm "
       "transformer.dual_attention_layers=[0,1,2,3,4,5,6,7,8,9,10,11,12] vae=@vae-16 "
       "text_encoder=@clip-l-projected text_encoder_2=@clip-g text_encoder_3=@t5-xxl",
       SizesSource::kTable},
      {"sd-3.5-large", "stabilityai/stable-diffusion-3.5-large", 13.721,
       "StableDiffusion3Pipeline transformer._class_name=SD3Transformer2DModel transformer.num_layers=38 "
       "transformer.num_attention_heads=38 "
       "transformer.attention_head_dim=64 transformer.joint_attention_dim=4096 "
       "transformer.caption_projection_dim=2432 transformer.pooled_projection_dim=2048 "
       "transformer.pos_embed_max_size=192 transformer.sample_size=128 transformer.qk_norm=rms_norm "
       "vae=@vae-16 text_encoder=@clip-l-projected text_encoder_2=@clip-g text_encoder_3=@t5-xxl",
       SizesSource::kTable},
      {"flux.1-dev", "black-forest-labs/FLUX.1-dev", 16.871,
       "FluxPipeline transformer._class_name=FluxTransformer2DModel transformer.num_layers=19 "
       "transformer.num_single_layers=38 transformer.num_attention_heads=24 "
       "transformer.attention_head_dim=128 "
       "transformer.in_channels=64 transformer.joint_attention_dim=4096 "
       "transformer.pooled_projection_dim=768 "
       "transformer.guidance_embeds=true vae=@vae-16 text_encoder=@clip-l text_encoder_2=@t5-xxl",
       SizesSource::kTable},
      {"flux.1-schnell", "black-forest-labs/FLUX.1-schnell", 16.860,
       "FluxPipeline transformer._class_name=FluxTransformer2DModel transformer.num_layers=19 "
       "transformer.num_single_layers=38 transformer.num_attention_heads=24 "
       "transformer.attention_head_dim=128 "
       "transformer.in_channels=64 transformer.joint_attention_dim=4096 "
       "transformer.pooled_projection_dim=768 "
       "transformer.guidance_embeds=false vae=@vae-16 text_encoder=@clip-l text_encoder_2=@t5-xxl",
       SizesSource::kTable}};
  return kModels;
}

}  // namespace spillway::estimator
