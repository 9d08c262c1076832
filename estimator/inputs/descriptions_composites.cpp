// Composite models: what stands between a tower of images and the language part. model_descriptions.h says
// how they are written.
#include "estimator/inputs/model_descriptions.h"

namespace spillway::estimator {

const std::vector<std::string_view>& vision_language_descriptions() {
  static const std::vector<std::string_view> kAll = {
      R"(types llava
vision clip_vision_model
let levels max(count(whole.vision_feature_layer),1)
connector in=v*levels inner=text bias=whole.multimodal_projector_bias:1
)",
      R"(types llava_next llava_next_video
vision clip_vision_model
let levels max(count(whole.vision_feature_layer),1)
connector in=v*levels inner=text bias=whole.multimodal_projector_bias:1 other=text
)",
      R"(types llava_onevision
vision siglip_vision_model
let levels max(count(whole.vision_feature_layer),1)
connector in=v*levels inner=text bias=whole.multimodal_projector_bias:1 other=text
)",
      R"(types vipllava
vision clip_vision_model
let levels if(has(whole.vision_feature_layers),max(count(whole.vision_feature_layers),1),5)
connector in=v*levels inner=text bias=1 other=2*v*levels
)",
      R"(types mistral3
vision pixtral
let side whole.spatial_merge_size:2
let levels max(count(whole.vision_feature_layer),1)
connector merged=side*side in=v*levels inner=text bias=whole.multimodal_projector_bias:0 other=v+v*v*side*side
)",
      R"(types qwen2_vl
vision qwen2_vl_tower
let side vision_config.spatial_merge_size:2
let merged v*side*side
connector merged=side*side in=merged inner=merged out=vision_config.hidden_size:3584 bias=1 other=2*v
)",
      R"(types qwen2_5_vl
vision qwen2_5_vl_tower
let side vision_config.spatial_merge_size:2
let merged v*side*side
connector merged=side*side in=merged inner=merged out=vision_config.out_hidden_size:3584 bias=1 other=v
)",
      R"(types qwen3_vl qwen3_vl_moe
vision qwen3_vl_tower
let side vision_config.spatial_merge_size:2
let merged v*side*side
let more if(has(vision_config.deepstack_visual_indexes),count(vision_config.deepstack_visual_indexes),3)
let to vision_config.out_hidden_size:3584
connector merged=side*side in=merged inner=merged out=to bias=1 count=1+more other=2*v+more*2*merged
)",
      R"(types qwen3_5 qwen3_5_moe
vision qwen3_vl_tower
let side vision_config.spatial_merge_size:2
let merged v*side*side
connector merged=side*side in=merged inner=merged out=vision_config.out_hidden_size:3584 bias=1 other=2*v
)",
      R"(types exaone4_5
vision exaone4_5_tower
let side vision_config.spatial_merge_size:2
let merged v*side*side
connector merged=side*side in=merged inner=merged out=vision_config.out_hidden_size:3584 bias=1 other=v
)",
      R"(types glm4v glm4v_moe glm46v
vision glm4v_tower
let side vision_config.spatial_merge_size:2
let to vision_config.out_hidden_size:4096
let joined side*side*v*to+to+to*to+2*to
connector merged=side*side in=to inner=2*vision_config.intermediate_size:13696 halves=1 out=to other=joined
)",
      R"(types glm_ocr
vision glm_ocr_tower
let side vision_config.spatial_merge_size:2
let to vision_config.out_hidden_size:1536
let joined side*side*v*to+to+to*to+2*to
connector merged=side*side in=to inner=2*to*vision_config.in_channels:3 halves=1 out=to other=joined
)",
      R"(types kimi_k25
vision moonvit_tower
let merged 4*v
connector merged=4 in=merged inner=merged bias=1 other=2*v
)",
      R"(types video_llama_3
vision video_llama_3_tower
connector in=v inner=text bias=1
)",
      R"(types lfm2_vl lfm2-vl
vision siglip2_vision_model
let side whole.downsample_factor:2
let merged side*side*v
let norm whole.projector_use_layernorm:1*2*merged
connector merged=side*side in=merged inner=whole.projector_hidden_size:2560 bias=whole.projector_bias:1 other=norm
)",
      R"(types deepseek_vl
vision siglip_vision_model
connector in=v inner=text bias=1
)",
      R"(types paddleocr_vl
vision paddleocr_tower
let side vision_config.spatial_merge_size:2
let merged v*side*side
connector merged=side*side in=merged inner=merged bias=1 other=2*v
)",
      R"(types lighton_ocr
vision pixtral
let side whole.spatial_merge_size:2
connector merged=side*side in=v inner=text other=v+v*v*side*side
)",
      R"(types gemma4
vision gemma4_tower
let side vision_config.pooling_kernel_size:3
let a audio_config.hidden_size:1024
let taps audio_config.conv_kernel_size:5
let hears audio_config.output_proj_dims:1536
let layer_of_sounds 24*a*a+(9+taps)*a+a/audio_config.num_attention_heads:8
let before_sounds 10*128+9*128*32+32+32*32*a
let sounds audio_config.num_hidden_layers:12*layer_of_sounds+before_sounds+a*hears+hears+hears*text
connector merged=side*side in=v other=if(has(audio_config.model_type),sounds,0)
warn has(audio_config.model_type) audio_config: the tower's weights are counted; samples are taken to have no sounds
passes audio_config.
)",
      R"(types gemma3 shieldgemma2
vision siglip_vision_model
connector merged=max(1,tokens/whole.mm_tokens_per_image:256) in=v other=v
)",
      R"(types paligemma
vision siglip_vision_model
connector in=v out=vision_config.projection_dim|whole.projection_dim:2048 bias=1
)",
      R"(types internvl
vision internvl_vision
let merged v*if(is(whole.downsample_ratio,0.25),16,4)
connector merged=if(is(whole.downsample_ratio,0.25),16,4) in=merged inner=text bias=1 other=2*merged
)",
      R"(types idefics3 smolvlm
vision idefics3_vision
let side whole.scale_factor:2
connector merged=side*side in=v*side*side
)",
      R"(types aya_vision
vision siglip_vision_model
let side whole.downsample_factor:2
let wide whole.alignment_intermediate_size:text
connector merged=side*side in=v*side*side inner=wide halves=1 bias=1 other=2*v*side*side
)",
      R"(types cohere2_vision
vision siglip_vision_model
let side whole.downsample_factor:2
connector merged=side*side in=v*side*side inner=whole.alignment_intermediate_size:36864 halves=1 bias=1
)",
      R"(types llama4
vision llama4_tower
let wide vision_config.projector_output_dim:4096
let adapter vision_config.intermediate_size:5632*vision_config.projector_input_dim:4096+wide*wide
connector merged=4 in=vision_config.vision_output_dim:7680 other=adapter
)",
  };
  return kAll;
}

}  // namespace spillway::estimator
