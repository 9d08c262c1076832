// Decoders: with state spaces, linear attention, convolutions, and what else no family has.
// model_descriptions.h says how they are written.
#include "estimator/inputs/model_descriptions.h"

namespace spillway::estimator {

const std::vector<std::string_view>& decoder_descriptions() {
  static const std::vector<std::string_view> kAll = {
      R"(types mamba falcon_mamba
let h hidden_size
let i if(has(intermediate_size),intermediate_size:0,expand:2*h)
let n state_size:16
let r if(is(time_step_rank,auto),ceil(h,16),time_step_rank)
let b use_bias:0
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
refuse (i)==0 expand
refuse n==0 state_size
refuse (r)==0 time_step_rank
refuse use_mambapy:0 use_mambapy
refuse use_falcon_mambapy:0 use_falcon_mambapy
tower decoder 2048
norm h
layers num_hidden_layers|n_layer
mixer matrix=h*2*i+i*(r+2*n)+r*i+i*h other=i*(conv_kernel:4+use_conv_bias:1)+i*n+2*i+b*(2*i+h) norm=h saved=6*i+r+2*n conv=i*(conv_kernel:4-1) state=i*n inner=i states=n rank=r kernel=conv_kernel:4 bias=b conv_bias=use_conv_bias:1 norms=is(model_type,falcon_mamba)
class ForCausalLM 0 vocabulary
class Model 0
passes expand
)",
      R"(types mamba2
let h hidden_size
let i expand:2*h
let s 2*n_groups:8*state_size:128
let b use_bias:0
let wide 2*i+s+num_heads
hidden h
vocabulary vocab_size
tied tie_word_embeddings:0
refuse num_heads==0 num_heads
refuse (i)==0 expand
refuse state_size:128==0 state_size
refuse n_groups:8==0 n_groups
tower decoder 2048
norm h
layers num_hidden_layers
mixer matrix=h*wide+i*h other=(i+s)*(conv_kernel:4+use_conv_bias:1)+3*num_heads+i+b*(wide+h) norm=h saved=5*i+s+num_heads conv=(i+s)*(conv_kernel:4-1) state=i*state_size:128 heads=num_heads dim=i/num_heads states=state_size:128 groups=n_groups:8 kernel=conv_kernel:4 chunk=chunk_size:256 bias=b out_bias=b conv_bias=use_conv_bias:1 normed=1
class ForCausalLM 0 vocabulary
class Model 0
passes head_dim time_step_rank
)",
      R"(types jamba
let h hidden_size
let i mamba_expand:2*h
let n mamba_d_state:16
let r if(is(mamba_dt_rank,auto),ceil(h,16),mamba_dt_rank)
let attends layer%attn_layer_period==attn_layer_offset
let routes (num_experts>1)*(layer%expert_layer_period==expert_layer_offset)
hidden h
vocabulary vocab_size
tied tie_word_embeddings:0
refuse (i)==0 mamba_expand
refuse n==0 mamba_d_state
refuse (r)==0 mamba_dt_rank
tower decoder max_position_embeddings:4096
norm h
layers num_hidden_layers
attention heads=num_attention_heads kv=num_key_value_heads norm=h if attends
mixer matrix=h*2*i+i*(r+2*n)+r*i+i*h other=i*(mamba_d_conv:4+mamba_conv_bias:1)+i*n+2*i+r+2*n+mamba_proj_bias:0*(2*i+h) norm=h saved=6*i+r+2*n conv=i*(mamba_d_conv:4-1) state=i*n inner=i states=n rank=r kernel=mamba_d_conv:4 bias=mamba_proj_bias:0 conv_bias=mamba_conv_bias:1 norms=2 if 1-(attends)
experts count=num_experts top=num_experts_per_tok ffn=intermediate_size norm=h if routes
mlp ffn=intermediate_size gated=1 norm=h if 1-routes
class ForCausalLM 0 vocabulary
class ForSequenceClassification labels*h
class Model 0
passes layer_types layers_block_type use_mamba_kernels layers_num_experts
)",
      R"(types bamba falcon_h1 granitemoehybrid
let h hidden_size
let parallel is(model_type,falcon_h1)
let routed is(model_type,granitemoehybrid)
let i if(has(mamba_d_ssm),mamba_d_ssm:0,mamba_expand:2*h)
let s 2*mamba_n_groups:1*mamba_d_state:256
let heads mamba_n_heads
let wide 2*i+s+heads
let inside if(parallel,i*mamba_rms_norm:0,i)
let listed at(layer_types|layers_block_type,full_attention,attention)
let attends if(parallel,1,if(routed,listed,in(attn_layer_indices)))
let mixes if(parallel,1,1-attends)
let experts_there if(routed,num_local_experts:0>0,0)
let shared if(routed,shared_intermediate_size:1024,0)
let ffn if(routed,shared,intermediate_size)
let b mamba_proj_bias:0
let out_b if(parallel,projectors_bias:0,b)
hidden h
vocabulary vocab_size
tied tie_word_embeddings:0
refuse mamba_n_heads==0 mamba_n_heads
refuse (i)==0 mamba_expand
refuse mamba_d_state:256==0 mamba_d_state
refuse mamba_n_groups:1==0 mamba_n_groups
tower decoder max_position_embeddings:4096
norm h
layers num_hidden_layers
mixer matrix=h*wide+i*h other=(i+s)*(mamba_d_conv:4+mamba_conv_bias:1)+3*heads+inside+b*wide+out_b*h norm=h saved=5*i+s+heads conv=(i+s)*(mamba_d_conv:4-1) state=i*mamba_d_state:256 heads=heads dim=i/heads states=mamba_d_state:256 groups=mamba_n_groups:1 kernel=mamba_d_conv:4 chunk=mamba_chunk_size:256 bias=b out_bias=out_b conv_bias=mamba_conv_bias:1 normed=inside>0 if mixes
attention heads=num_attention_heads kv=num_key_value_heads:num_attention_heads dim=head_dim:(h/num_attention_heads) bias=attention_bias:0 norm=if(parallel,0,h) if attends
experts count=num_local_experts top=num_experts_per_tok ffn=intermediate_size shared=shared norm=h if experts_there
mlp ffn=ffn gated=1 bias=if(routed,0,mlp_bias:0) norm=h if 1-experts_there
class ForCausalLM 0 vocabulary
class Model 0
passes num_attention_heads num_key_value_heads head_dim attention_bias mamba_chunk_size mamba_d_head mamba_expand layer_types layers_block_type num_experts_per_tok intermediate_size num_logits_to_keep attn_rotary_emb mamba_norm_before_gate mamba_use_mlp mlp_expansion_factor
)",
      R"(types zamba2
let h hidden_size
let i mamba_expand:2*h
let s 2*mamba_ngroups:1*mamba_d_state:64
let heads n_mamba_heads:8
let wide 2*i+s+heads
let b add_bias_linear:0
let listed has(layers_block_type|layer_types)
let hybrid if(listed,at(layers_block_type|layer_types,hybrid),(layer>0)*(layer<=42)*(layer%6==0)+(layer==47)+(layer==51))
let earlier if(listed,before(layers_block_type|layer_types,hybrid),min((layer-(layer>0))/6,7)+(layer>47))
let sets num_mem_blocks:1
let rank adapter_rank:128
let kv num_key_value_heads:num_attention_heads
let ffn if(has(intermediate_size),intermediate_size:0,0)
let attention_rank use_shared_attention_adapter:0*rank
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
refuse (1-listed)*(num_hidden_layers!=54) layers_block_type a word for each of num_hidden_layers
refuse listed*(count(layers_block_type|layer_types)!=num_hidden_layers) layers_block_type a word for each of num_hidden_layers
refuse listed*(count(layers_block_type|layer_types,mamba,linear_attention,hybrid)!=count(layers_block_type|layer_types)) layers_block_type mamba, linear_attention and hybrid
refuse (1-tie_word_embeddings:1)*(1-four)*(if(listed,count(layers_block_type|layer_types,hybrid),9)>sets) tie_word_embeddings true since transformers 5, which shares blocks only then
refuse num_attention_heads==0 num_attention_heads
refuse (kv)==0 num_key_value_heads
refuse mamba_d_conv:4==0 mamba_d_conv
refuse chunk_size:256==0 chunk_size
refuse (heads)>i n_mamba_heads
refuse (i)==0 mamba_expand
refuse mamba_d_state:64==0 mamba_d_state
refuse mamba_ngroups:1==0 mamba_ngroups
refuse (heads)==0 n_mamba_heads
refuse (sets)==0 num_mem_blocks
refuse (rank)==0 adapter_rank
refuse use_shared_attention_adapter:0*(kv!=num_attention_heads) num_key_value_heads as many as num_attention_heads beside use_shared_attention_adapter
tower decoder max_position_embeddings:4096
norm h
layers num_hidden_layers
attention heads=num_attention_heads kv=kv dim=2*h/num_attention_heads input=2*h norm=2*h set=earlier%sets first=earlier<sets rank=attention_rank if hybrid
mlp ffn=if(ffn,ffn,4*h) gated=1 bias=b norm=h set=earlier%sets first=earlier<sets rank=rank if hybrid
mixer matrix=h*h saved=h projection=1 if hybrid
mixer matrix=h*wide+i*h other=(i+s)*(mamba_d_conv:4+1)+3*heads+i+b*(wide+h) norm=h saved=5*i+s+heads conv=(i+s)*(mamba_d_conv:4-1) state=i*mamba_d_state:64 heads=heads dim=i/heads states=mamba_d_state:64 groups=mamba_ngroups:1 kernel=mamba_d_conv:4 chunk=chunk_size:256 bias=b out_bias=b conv_bias=1 normed=1
class ForCausalLM 0 vocabulary
class ForSequenceClassification labels*h
class Model 0
passes attention_hidden_size attention_head_dim head_dim mamba_headdim kv_channels num_query_groups hybrid_layer_ids use_conv_bias use_mamba_kernels use_mem_eff_path use_mem_rope use_long_context num_logits_to_keep intermediate_size num_key_value_heads time_step_limit use_shared_block use_shared_mlp_adapter ffn_hidden_size layer_types
)",
      R"(types lfm2
let h hidden_size
let told block_ff_dim|intermediate_size
let adjusts block_auto_adjust_ff_dim:1
let raw if(adjusts,2*told/3,told)
let ffn if(adjusts,block_multiple_of:256*ceil(raw,block_multiple_of:256),told)
let attends if(has(layer_types),at(layer_types,full_attention),if(has(full_attn_idxs),in(full_attn_idxs),1))
let b conv_bias:0
let dims h/num_attention_heads
hidden h
vocabulary vocab_size
tied tie_word_embeddings|tie_embedding:1
refuse block_ffn_dim_multiplier:1!=1 block_ffn_dim_multiplier
tower decoder max_position_embeddings:128000
norm h
layers num_hidden_layers
attention heads=num_attention_heads kv=num_key_value_heads dim=dims head_norms=2*dims norm=h if attends
mixer matrix=h*3*h+h*h other=h*conv_L_cache:3+b*(h+3*h+h) norm=h saved=5*h conv=h*(conv_L_cache:3-1) kernel=conv_L_cache:3 bias=b if 1-attends
mlp ffn=ffn gated=1 norm=h
class ForCausalLM 0 vocabulary
class Model 0
passes conv_L_cache num_attention_heads num_key_value_heads full_attn_idxs conv_dim conv_dim_out block_dim conv_use_xavier_init block_norm_eps block_use_swiglu block_use_xavier_init num_heads
)",
      R"(types nemotron_h
let h hidden_size
let i mamba_num_heads*mamba_head_dim
let groups mamba_n_groups|n_groups:8
let kernel mamba_d_conv|conv_kernel:4
let conv_bias mamba_conv_bias|use_conv_bias:1
let s 2*groups*ssm_state_size:128
let heads mamba_num_heads
let wide 2*i+s+heads
let b mamba_proj_bias|use_bias:0
let shared n_shared_experts:1*moe_shared_expert_intermediate_size
hidden h
vocabulary vocab_size
tied 0
refuse 1-has(layers_block_type|layer_types|listed_pattern) layers_block_type a word for each layer
refuse has(moe_latent_size) moe_latent_size
refuse mamba_num_heads==0 mamba_num_heads
refuse mamba_head_dim==0 mamba_head_dim
refuse ssm_state_size:128==0 ssm_state_size
tower decoder max_position_embeddings:4096
norm h
layers count(layers_block_type|layer_types|listed_pattern)
mixer matrix=h*wide+i*h other=(i+s)*(kernel+conv_bias)+3*heads+i+b*(wide+h) norm=h saved=5*i+s+heads conv=(i+s)*(kernel-1) state=i*ssm_state_size:128 heads=heads dim=mamba_head_dim states=ssm_state_size:128 groups=groups kernel=kernel chunk=mamba_chunk_size|chunk_size:128 bias=b out_bias=b conv_bias=conv_bias normed=1 if at(layers_block_type|layer_types|listed_pattern,linear_attention,mamba)
attention heads=num_attention_heads kv=num_key_value_heads dim=head_dim bias=attention_bias:0 norm=h if at(layers_block_type|layer_types|listed_pattern,full_attention,attention)
experts count=n_routed_experts top=num_experts_per_tok ffn=moe_intermediate_size shared=shared gated=0 norm=h if at(layers_block_type|layer_types|listed_pattern,moe)
mlp ffn=intermediate_size bias=mlp_bias:0 norm=h if at(layers_block_type|layer_types|listed_pattern,mlp)
class ForCausalLM 0 vocabulary
class Model 0
passes mtp_hybrid_override_pattern tie_word_embeddings moe_shared_expert_overlap mtp_layers_block_type expand chunk_size num_hidden_layers intermediate_size mlp_bias n_routed_experts num_experts_per_tok moe_intermediate_size use_mamba_kernels num_attention_heads num_key_value_heads head_dim mamba_hidden_act n_shared_experts use_bias
)",
      R"(types qwen3_next qwen3_5_text qwen3_5_moe_text
let h hidden_size
let dims head_dim:256
let q num_attention_heads*dims
let keys linear_num_key_heads*linear_key_head_dim
let vals linear_num_value_heads*linear_value_head_dim
let vh linear_num_value_heads
let attends if(has(layer_types),at(layer_types,full_attention),(layer+1)%full_attention_interval:4==0)
let routes if(is(model_type,qwen3_5_text),0,(num_experts>0)*((layer+1)%decoder_sparse_step:1==0))
hidden h
vocabulary vocab_size
tied tie_word_embeddings:0
refuse count(mlp_only_layers) mlp_only_layers
refuse full_attention_interval:4==0 full_attention_interval
refuse linear_num_key_heads==0 linear_num_key_heads
refuse linear_num_value_heads==0 linear_num_value_heads
refuse linear_key_head_dim==0 linear_key_head_dim
refuse linear_value_head_dim==0 linear_value_head_dim
refuse linear_num_value_heads%linear_num_key_heads!=0 linear_num_value_heads
tower decoder max_position_embeddings:32768
norm h
layers num_hidden_layers
attention heads=num_attention_heads kv=num_key_value_heads dim=dims bias=attention_bias:0 head_norms=2*dims gated=1 norm=h if attends
mixer matrix=h*(2*keys+2*vals+2*vh)+vals*h other=(2*keys+vals)*linear_conv_kernel_dim:4+2*vh+linear_value_head_dim norm=h saved=4*keys+5*vals+2*vh conv=(2*keys+vals)*(linear_conv_kernel_dim:4-1) state=vals*linear_key_head_dim key_heads=linear_num_key_heads value_heads=vh joined=is(model_type,qwen3_next) key_dim=linear_key_head_dim value_dim=linear_value_head_dim kernel=linear_conv_kernel_dim:4 if 1-attends
experts count=num_experts top=num_experts_per_tok ffn=moe_intermediate_size shared=shared_expert_intermediate_size:0 shared_gate=1 norm=h if routes
mlp ffn=intermediate_size gated=1 norm=h if 1-routes
class ForCausalLM 0 vocabulary
class ForSequenceClassification labels*h
class ForTokenClassification labels*(h+1)
class ForQuestionAnswering 2*(h+1)
class Model 0
passes intermediate_size decoder_sparse_step full_attention_interval norm_topk_prob
)",
      R"(types ernie4_5_moe
let h hidden_size
let b use_bias:0
let last if(is(moe_layer_end_index,-1),num_hidden_layers-1,moe_layer_end_index:(num_hidden_layers-1))
let routes (layer>=moe_layer_start_index:1)*(layer<=last)*((layer+1)%moe_layer_interval:1==0)
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
tower decoder max_position_embeddings:131072
norm h
layers num_hidden_layers
attention heads=num_attention_heads kv=num_key_value_heads dim=head_dim:(h/num_attention_heads) bias=b norm=h
experts count=moe_num_experts top=moe_k ffn=moe_intermediate_size shared=moe_num_shared_experts*moe_intermediate_size router_bias=1 norm=h if routes
mlp ffn=intermediate_size gated=1 bias=b norm=h if 1-routes
class ForCausalLM 0 vocabulary
class Model 0
refuse b use_bias
passes moe_capacity moe_layer_end_index moe_norm_min
)",
      R"(types minimax
let h hidden_size
let dims head_dim:(h/num_attention_heads)
let p num_attention_heads*dims
let attends if(has(layer_types),at(layer_types,full_attention),(layer+1)%2)
hidden h
vocabulary vocab_size
tied tie_word_embeddings:0
tower decoder max_position_embeddings:4096
norm h
layers num_hidden_layers
attention heads=num_attention_heads kv=num_key_value_heads dim=dims norm=h if attends
mixer matrix=h*3*p+p*h+h*p other=p norm=h saved=6*p state=p*dims heads=num_attention_heads dim=dims block=block_size:256 if 1-attends
experts count=num_local_experts top=num_experts_per_tok ffn=intermediate_size norm=h
class ForCausalLM 0 vocabulary
class ForSequenceClassification labels*h
class ForTokenClassification labels*(h+1)
class ForQuestionAnswering 2*(h+1)
class Model 0
)",
      R"(types glm4_moe_lite kimi_linear
let h hidden_size
let kimi is(model_type,kimi_linear)
let heads num_attention_heads
let d linear_head_dim
let p linear_num_heads*d
let attends if(kimi,if(has(layer_types),at(layer_types,full_attention),(layer>0)*(layer%4==0)),1)
let routes if(has(mlp_layer_types),at(mlp_layer_types,sparse),if(kimi,layer>=first_k_dense_replace:1,layer>0))
let qr if(has(q_lora_rank),q_lora_rank:0,0)
let shared n_shared_experts|num_shared_experts*moe_intermediate_size
let b attention_bias:0
hidden h
vocabulary vocab_size
tied if(kimi,0,tie_word_embeddings:0)
refuse kimi*has(linear_attn_config.full_attn_layers)*(1-has(layer_types)) linear_attn_config.full_attn_layers
tower decoder max_position_embeddings|model_max_length:131072
norm h
layers num_hidden_layers
attention heads=heads q_rank=qr kv_rank=kv_lora_rank nope=qk_nope_head_dim rope=qk_rope_head_dim value=v_head_dim out_bias=b extra=b*(qr+kv_lora_rank+qk_rope_head_dim) norm=h if attends
mixer matrix=3*h*p+h*d+d*p+h*linear_num_heads+h*d+d*p+p*h other=3*p*linear_conv_kernel_dim:4+p+linear_num_heads+d norm=h saved=12*p conv=3*p*(linear_conv_kernel_dim:4-1) state=p*d if 1-attends
experts count=n_routed_experts|num_experts top=num_experts_per_tok|num_experts_per_token ffn=moe_intermediate_size shared=shared norm=h if routes
mlp ffn=intermediate_size gated=1 norm=h if 1-routes
class ForCausalLM 0 vocabulary
class Model 0
passes tie_word_embeddings head_dim num_key_value_heads first_k_dense_replace num_expert_group moe_renormalize qk_head_dim q_lora_rank num_nextn_predict_layers
)",
      R"(types apertus
let h hidden_size
let heads num_attention_heads
let dims head_dim:(h/heads)
let b attention_bias:0
hidden h
vocabulary vocab_size
tied tie_word_embeddings:0
tower decoder max_position_embeddings:4096
norm h
layers num_hidden_layers
attention heads=heads kv=num_key_value_heads:heads dim=dims bias=b head_norms=2*dims norm=h
mlp ffn=intermediate_size bias=mlp_bias:0 norm=h+2
class ForCausalLM 0 vocabulary
class ForTokenClassification labels*(h+1)
class Model 0
)",
      R"(types bitnet
let h hidden_size
let heads num_attention_heads
hidden h
vocabulary vocab_size
tied tie_word_embeddings:0
tower decoder max_position_embeddings:4096
norm h
layers num_hidden_layers
attention heads=heads kv=num_key_value_heads:heads dim=head_dim:(h/heads) bias=attention_bias:0 extra=h norm=h
mlp ffn=intermediate_size gated=1 norm=h+intermediate_size
class ForCausalLM 0 vocabulary
class Model 0
)",
      R"(types gemma4_text gemma3n_text
let h hidden_size
let third is(model_type,gemma3n_text)
let n altup_num_inputs:4
let r laurel_rank:64
let sixth (layer+1)%6==0
let full if(third,0,if(layer+1==num_hidden_layers,1,if(has(layer_types),at(layer_types,full_attention),sixth)))
let sees_all if(third,if(has(layer_types),at(layer_types,full_attention),(layer+1)%5==0),full)
let alike if(third,0,full*attention_k_eq_v:0)
let dims if(has_section(per_layer_config),own(head_dim),if(full,global_head_dim:512,head_dim:256))
let kv if(has_section(per_layer_config),own(num_key_value_heads),if(alike,num_global_key_value_heads:num_key_value_heads,num_key_value_heads))
let shared layer>=num_hidden_layers-num_kv_shared_layers:0
let own third*four
let p hidden_size_per_layer_input:256
let all num_hidden_layers*p
let ffn if(third,each(intermediate_size),intermediate_size*(1+(shared)*use_double_wide_mlp:0))
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
refuse attention_bias:0 attention_bias
refuse is(use_bidirectional_attention,all) use_bidirectional_attention
refuse (third)*(p==0) hidden_size_per_layer_input
refuse (third)*(n>64) altup_num_inputs
refuse (third)*(n==0) altup_num_inputs
refuse (third)*(r==0) laurel_rank
tower decoder max_position_embeddings:32768
input p+if(third,2*(n-1)*h*h,0)
sharded vocab_size_per_layer_input:262144*all*(p>0)+h*all
norm h
layers num_hidden_layers
attention heads=num_attention_heads kv=kv dim=dims head_norms=(2-(shared)*(1-own))*dims norm=2*h shares_keys=shared makes_keys=own keys_are_values=alike sees_all=sees_all
mlp ffn=ffn gated=1 norm=2*h
experts count=num_experts top=top_k_experts ffn=moe_intermediate_size norm=4*h+num_experts if if(third,0,enable_moe_block:0)
mixer matrix=2*h*p norm=h saved=2*p input=p if p>0
mixer matrix=2*h*r+n*h other=2*h+n*n+n*n*n norm=h saved=r+n*h versions=n rank=r if third
class ForCausalLM 0 vocabulary
class Model 0
passes num_experts top_k_experts moe_intermediate_size altup_active_idx altup_coef_clip altup_correct_scale altup_lr_multiplier activation_sparsity_pattern layer_types use_double_wide_mlp global_head_dim num_global_key_value_heads use_bidirectional_attention
)",
  };
  return kAll;
}

}  // namespace spillway::estimator
