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
let h hidden_size
let side image_size/patch_size
hidden h
vocabulary 0
tower encoder side*side+1 fixed
input num_channels:3*patch_size*patch_size*h+h+(side*side+1)*h+2*h
norm 2*h
layers num_hidden_layers
attention heads=num_attention_heads bias=1 norm=2*h
mlp ffn=intermediate_size bias=1 norm=2*h
class Model 0
class ModelWithProjection h*projection_dim:512
class ForImageClassification labels*(h+1)
passes projection_dim
)",
      R"(types siglip_vision_model
let h hidden_size
let f intermediate_size
let side image_size/patch_size
let probe h+3*h*h+3*h+h*h+h+2*h+2*h*f+f+h
hidden h
vocabulary 0
tower encoder side*side fixed
input num_channels:3*patch_size*patch_size*h+h+side*side*h
norm 2*h
layers num_hidden_layers
attention heads=num_attention_heads bias=1 norm=2*h
mlp ffn=f bias=1 norm=2*h
class Model if(vision_use_head:1,probe,0)
)",
  };
  return kAll;
}

}  // namespace spillway::estimator
