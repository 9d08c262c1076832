// Encoders of images, and of the texts beside them. model_descriptions.h says how they are written.
#include "estimator/inputs/model_descriptions.h"

namespace spillway::estimator {

const std::vector<std::string_view>& vision_descriptions() {
  static const std::vector<std::string_view> kAll = {
      R"(types clip_text_model siglip_text_model
let h hidden_size
let clip is(model_type,clip_text_model)
hidden h
vocabulary vocab_size
tied 1
positions max_position_embeddings
tower encoder max_position_embeddings
norm 2*h
layers num_hidden_layers
attention heads=num_attention_heads bias=1 norm=2*h
mlp ffn=intermediate_size bias=1 norm=2*h
class Model if(clip,0,h*projection_size:h+projection_size:h)
class ModelWithProjection h*projection_dim:512
passes projection_dim
)",
      R"(types vit deit vit_msn
let h hidden_size
let extra if(is(model_type,deit),2,1)
let side image_size/patch_size
hidden h
vocabulary 0
tower encoder side*side+extra fixed
input num_channels:3*patch_size*patch_size*h+h+(side*side+extra)*h+extra*h
norm 2*h
layers num_hidden_layers
attention heads=num_attention_heads qkv_bias=qkv_bias:1 out_bias=1 norm=2*h
mlp ffn=intermediate_size bias=1 norm=2*h
class ForImageClassification labels*(h+1)
class ForImageClassificationWithTeacher 2*labels*(h+1)
class Model if(is(model_type,vit_msn),0,h*h+h)
passes pooler_output_size encoder_stride
)",
      R"(types dinov2 dinov2_with_registers
let h hidden_size
let side image_size/patch_size
let marks if(is(model_type,dinov2_with_registers),num_register_tokens:4,0)
let masks if(is(model_type,dinov2_with_registers),1,use_mask_token:1)
let wide mlp_ratio:4*h
let swiglu use_swiglu_ffn:0
let ffn if(swiglu,(wide*2/3+7)/8*8,wide)
hidden h
vocabulary 0
tower encoder side*side+1+marks fixed
input num_channels:3*patch_size*patch_size*h+h+(side*side+1)*h+h+masks*h+marks*h
norm 2*h
layers num_hidden_layers
attention heads=num_attention_heads qkv_bias=qkv_bias:1 out_bias=1 extra=h norm=2*h
mlp ffn=ffn gated=swiglu bias=1 norm=3*h
class ForImageClassification labels*(2*h+1)
class Model 0
passes out_features out_indices stage_names reshape_hidden_states apply_layernorm layerscale_value
)",
      R"(types clip_vision_model chinese_clip_vision_model
let h hidden_size:768
let side image_size:224/patch_size:32
hidden h
vocabulary 0
tower encoder side*side+1 fixed
input num_channels:3*patch_size:32*patch_size:32*h+h+(side*side+1)*h+2*h
norm 2*h
layers num_hidden_layers:12
attention heads=num_attention_heads:12 bias=1 norm=2*h
mlp ffn=intermediate_size:3072 bias=1 norm=2*h
class Model 0
class ModelWithProjection h*projection_dim:512
class ForImageClassification labels*(h+1)
passes projection_dim
)",
      R"(types siglip_vision_model
let h hidden_size:768
let f intermediate_size:3072
let side image_size:224/patch_size:16
let probe h+3*h*h+3*h+h*h+h+2*h+2*h*f+f+h
hidden h
vocabulary 0
tower encoder side*side fixed
input num_channels:3*patch_size:16*patch_size:16*h+h+side*side*h
norm 2*h
layers num_hidden_layers:12
attention heads=num_attention_heads:12 bias=1 norm=2*h
mlp ffn=f bias=1 norm=2*h
class Model if(vision_use_head:1,probe,0)
)",
      R"(types siglip2_vision_model
let h hidden_size:768
let f intermediate_size:3072
let patch patch_size:16
let probe h+3*h*h+3*h+h*h+h+2*h+2*h*f+f+h
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input num_channels:3*patch*patch*h+h+num_patches:256*h
norm 2*h
layers num_hidden_layers:12
attention heads=num_attention_heads:12 bias=1 norm=2*h
mlp ffn=f bias=1 norm=2*h
class Model if(vision_use_head:1,probe,0)
passes image_size
)",
      R"(types pixtral
let h hidden_size:1024
let patch patch_size:16
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input num_channels:3*patch*patch*h+h
layers num_hidden_layers:24
attention heads=num_attention_heads:16 norm=h
mlp ffn=intermediate_size:4096 gated=1 norm=h
class Model 0
passes image_size head_dim
)",
      R"(types internvl_vision
let h hidden_size:1024
let patch if(has(patch_size),each(patch_size),14)
let side if(has(image_size),each(image_size),448)/patch
let n if(is(norm_type,rms_norm),h,2*h)
hidden h
vocabulary 0
tower encoder side*side+1 fixed
input num_channels:3*patch*patch*h+h+h+use_mask_token:0*h+if(use_absolute_position_embeddings:1,(side*side+1)*h,0)
norm if(use_mean_pooling:1,0,2*h)
layers num_hidden_layers:24
attention heads=num_attention_heads:16 qkv_bias=attention_bias:0 out_bias=1 norm=n+h head_norms=use_qk_norm:0*2*h
mlp ffn=intermediate_size:4096 bias=1 norm=n+h
class Model 0
passes layer_scale_init_value
)",
      R"(types idefics3_vision smolvlm_vision
let h hidden_size:1152
let patch patch_size:32
let side image_size:224/patch
hidden h
vocabulary 0
tower encoder side*side fixed
input num_channels:3*patch*patch*h+h+side*side*h
norm 2*h
layers num_hidden_layers:12
attention heads=num_attention_heads:16 bias=1 norm=2*h
mlp ffn=intermediate_size:3072 bias=1 norm=2*h
class Model 0
)",
  };
  return kAll;
}

// Without what transformers' own classes of these have behind the layers: that is the connector.
const std::vector<std::string_view>& tower_descriptions() {
  static const std::vector<std::string_view> kAll = {
      R"(types qwen2_vl_tower
let h embed_dim:1280
let patch patch_size:14
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input in_channels|in_chans:3*temporal_patch_size:2*patch*patch*h
layers depth:32
attention heads=num_heads:16 bias=1 norm=2*h
mlp ffn=h*mlp_ratio:4 bias=1 norm=2*h
class Model 0
passes hidden_size spatial_merge_size spatial_patch_size
)",
      R"(types qwen2_5_vl_tower
let h hidden_size:3584
let patch patch_size:14
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input in_channels|in_chans:3*temporal_patch_size:2*patch*patch*h
layers depth:32
attention heads=num_heads:16 bias=1 norm=h
mlp ffn=intermediate_size:3420 gated=1 bias=1 norm=h
class Model 0
passes out_hidden_size spatial_merge_size spatial_patch_size
)",
      R"(types qwen3_vl_tower
let h hidden_size:1152
let patch patch_size:16
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input in_channels|in_chans:3*temporal_patch_size:2*patch*patch*h+h+num_position_embeddings:2304*h
layers depth:27
attention heads=num_heads:16 bias=1 norm=2*h
mlp ffn=intermediate_size:4304 bias=1 norm=2*h
class Model 0
passes out_hidden_size spatial_merge_size
)",
      R"(types exaone4_5_tower
let h hidden_size:3584
let patch patch_size:14
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input in_channels:3*temporal_patch_size:2*patch*patch*h
layers depth:32
attention heads=num_heads:16 kv=num_key_value_heads:8 bias=1 norm=h
mlp ffn=intermediate_size:3420 gated=1 bias=1 norm=h
class Model 0
passes out_hidden_size spatial_merge_size
)",
      R"(types glm4v_tower
let h hidden_size:1536
let patch patch_size:14
let side image_size:336/patch
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input in_channels:3*temporal_patch_size:2*patch*patch*h+h+h+side*side*h
norm h
layers depth:24
attention heads=num_heads:12 qkv_bias=attention_bias:0 norm=h
mlp ffn=out_hidden_size:4096 gated=1 norm=h
class Model 0
passes intermediate_size spatial_merge_size
)",
      R"(types glm_ocr_tower
let h hidden_size:1024
let patch patch_size:14
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input in_channels:3*temporal_patch_size:2*patch*patch*h+h
norm h
layers depth:24
attention heads=num_heads:16 bias=attention_bias:1 norm=h head_norms=2*(h/num_heads:16)
mlp ffn=intermediate_size:4096 gated=1 bias=attention_bias:1 norm=h
class Model 0
passes image_size out_hidden_size spatial_merge_size
)",
      R"(types moonvit_tower
let h hidden_size|vt_hidden_size:1152
let patch patch_size:14
let places pos_emb_height|init_pos_emb_height:64*pos_emb_width|init_pos_emb_width:64
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input 3*patch*patch*h+h+places*h
norm 2*h
layers num_hidden_layers|vt_num_hidden_layers:27
attention heads=num_attention_heads|vt_num_attention_heads:16 bias=1 norm=2*h
mlp ffn=intermediate_size|vt_intermediate_size:4304 bias=1 norm=2*h
class Model 0
passes mm_hidden_size text_hidden_size mm_projector_type
)",
      R"(types video_llama_3_tower
let h hidden_size:768
let patch patch_size:16
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input num_channels:3*patch*patch*h+h
norm 2*h
layers num_hidden_layers:12
attention heads=num_attention_heads:12 bias=1 norm=2*h
mlp ffn=intermediate_size:3072 bias=1 norm=2*h
class Model 0
)",
      R"(types paddleocr_tower
let h hidden_size:1152
let patch patch_size:14
let side image_size:384/patch
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input num_channels:3*patch*patch*h+h+side*side*h
norm 2*h
layers num_hidden_layers:27
attention heads=num_attention_heads:16 bias=1 norm=2*h
mlp ffn=intermediate_size:4304 bias=1 norm=2*h
class Model 0
passes spatial_merge_size
)",
      R"(types gemma4_tower
let h hidden_size:768
let patch patch_size:16
let d head_dim:64
hidden h
vocabulary 0
tower encoder 1 fixed patch*patch
input 3*patch*patch*h+2*position_embedding_size:10240*h
layers num_hidden_layers:16
attention heads=num_attention_heads:12 kv=num_key_value_heads:12 dim=d norm=2*h head_norms=2*d
mlp ffn=intermediate_size:3072 gated=1 norm=2*h
class Model 0
passes pooling_kernel_size attention_bias
)",
      R"(types llama4_tower
let h hidden_size:768
let patch patch_size:14
let side image_size:448/patch
hidden h
vocabulary 0
tower encoder side*side+1 fixed
input num_channels:3*patch*patch*h+h+(side*side+1)*h+2*h
norm 2*h
layers num_hidden_layers:34
attention heads=num_attention_heads:16 bias=1 norm=2*h
mlp ffn=intermediate_size:5632 bias=1 norm=2*h
class Model 0
passes projector_input_dim projector_output_dim vision_output_dim pixel_shuffle_ratio multi_modal_projector_bias
)",
  };
  return kAll;
}

}  // namespace spillway::estimator
