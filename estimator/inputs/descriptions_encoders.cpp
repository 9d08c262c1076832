// Encoders, and encoders with decoders. model_descriptions.h says how they are written.
#include "estimator/inputs/model_descriptions.h"

namespace spillway::estimator {

const std::vector<std::string_view>& encoder_descriptions() {
  static const std::vector<std::string_view> kAll = {
      R"(types distilbert
let h dim|hidden_size
let whole h*h+h+labels*(h+1)
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
positions max_position_embeddings:512
bias 1
tower encoder max_position_embeddings:512
input 2*h
layers n_layers|num_hidden_layers
attention heads=n_heads|num_attention_heads bias=1 norm=2*h
mlp ffn=hidden_dim|intermediate_size bias=1 norm=2*h
class Model 0
class ForMaskedLM h*h+h+2*h vocabulary
class ForSequenceClassification whole
class ForTokenClassification labels*(h+1)
class ForQuestionAnswering 2*(h+1)
class ForMultipleChoice h*h+h+h+1
)",
      R"(types electra
let h hidden_size
let e embedding_size:128
hidden h
embedding e
vocabulary vocab_size
tied tie_word_embeddings:1
positions max_position_embeddings:512
segments type_vocab_size:2
bias 1
tower encoder max_position_embeddings:512
input 2*e+if(e==h,0,e*h+h)
layers num_hidden_layers
attention heads=num_attention_heads bias=1 norm=2*h
mlp ffn=intermediate_size bias=1 norm=2*h
class Model 0
class ForMaskedLM h*e+e+2*e vocabulary
class ForCausalLM h*e+e+2*e vocabulary
class ForPreTraining h*h+h+h+1
class ForSequenceClassification h*h+h+labels*(h+1)
class ForTokenClassification labels*(h+1)
class ForQuestionAnswering 2*(h+1)
)",
      R"(types deberta deberta-v2
let h hidden_size
let v2 is(model_type,deberta-v2)
let relative relative_attention:0
let c2p says(pos_att_type,c2p)
let p2c says(pos_att_type,p2c)
let shares share_att_key:0
let far max_relative_positions
let reach if(is(max_relative_positions,-1,0),max_position_embeddings:512,far)
let buckets if(is(position_buckets,-1),0,position_buckets:0)
let table if(buckets>0,2*buckets,2*reach)*h+if(says(norm_rel_ebd,layer_norm),2*h,0)
let of_key if(c2p,if(v2,(1-shares)*(h*h+h),h*h),0)
let of_query if(p2c,if(v2,(1-shares)*(h*h+h),h*h+h),0)
let kernel conv_kernel_size:0
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
positions if(position_biased_input:1,max_position_embeddings:512,0)
segments type_vocab_size:0
bias 1
refuse has(embedding_size)*(embedding_size:h!=h) embedding_size
refuse talking_head:0 talking_head
refuse 1-(tie_word_embeddings:1) tie_word_embeddings
tower encoder max_position_embeddings:512
input 2*h+if(relative,table,0)+if(kernel>0,h*h*kernel+3*h,0)
layers num_hidden_layers
attention heads=num_attention_heads qkv_bias=v2 out_bias=1 norm=2*h extra=if(v2,0,2*h)+if(relative,of_key+of_query,0)
mlp ffn=intermediate_size bias=1 norm=2*h
class Model 0
class ForMaskedLM h*h+h+2*h vocabulary
class ForSequenceClassification h*h+h+labels*(h+1)
class ForTokenClassification labels*(h+1)
class ForQuestionAnswering 2*(h+1)
passes pooler_hidden_size conv_act max_relative_positions pooler_hidden_act position_buckets
)",
      R"(types modernbert
let h hidden_size
let n h*(1+norm_bias:0)
let head h*h+h*classifier_bias:0+n
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
bias decoder_bias:1
tower encoder max_position_embeddings:8192
input n
norm n
layers num_hidden_layers
attention heads=num_attention_heads bias=attention_bias:0 norm=if(layer==0,0,n)
mlp ffn=intermediate_size gated=1 bias=mlp_bias:0 norm=n
class Model 0
class ForMaskedLM head vocabulary
class ForSequenceClassification head+labels*(h+1)
class ForTokenClassification head+labels*(h+1)
class ForQuestionAnswering head+2*(h+1)
passes global_attn_every_n_layers layer_types
)",
      R"(types mpnet
let h hidden_size
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
positions max_position_embeddings:512
bias 1
refuse 1-(tie_word_embeddings:1) tie_word_embeddings
tower encoder max_position_embeddings:512
input 2*h+relative_attention_num_buckets:32*num_attention_heads
layers num_hidden_layers
attention heads=num_attention_heads bias=1 norm=2*h
mlp ffn=intermediate_size bias=1 norm=2*h
class Model h*h+h
class ForMaskedLM h*h+h+2*h vocabulary
class ForSequenceClassification h*h+h+labels*(h+1)
class ForTokenClassification labels*(h+1)
class ForQuestionAnswering 2*(h+1)
class ForMultipleChoice h*h+h+h+1
)",
      R"(types megatron-bert roberta-prelayernorm xlm-roberta-xl
let h hidden_size
let first is(model_type,roberta-prelayernorm)
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
positions max_position_embeddings:512
segments type_vocab_size:2
bias 1
refuse 1-(tie_word_embeddings:1) tie_word_embeddings
tower encoder max_position_embeddings:512
input if(first,2*h,0)
norm 2*h
layers num_hidden_layers
attention heads=num_attention_heads bias=1 norm=2*h
mlp ffn=intermediate_size bias=1 norm=2*h
class ForMaskedLM h*h+h+2*h vocabulary
class ForCausalLM h*h+h+2*h vocabulary
class ForSequenceClassification h*h+h+labels*(h+1)
class ForTokenClassification labels*(h+1)
class ForQuestionAnswering 2*(h+1)
class ForMultipleChoice h*h+h+h+1
class Model h*h+h
)",
      R"(types bart mbart plbart pegasus marian blenderbot blenderbot-small m2m_100
let h d_model
let more if(is(model_type,bart,mbart,plbart),2,0)
let table if(is(model_type,m2m_100),0,(max_position_embeddings+more)*h)
let last if(is(model_type,mbart,pegasus,blenderbot,m2m_100),2*h,0)
let first if(is(model_type,bart,mbart,plbart,blenderbot-small),2*h,0)
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
refuse (1-share_encoder_decoder_embeddings:1) share_encoder_decoder_embeddings
refuse 1-(tie_word_embeddings:1) tie_word_embeddings
tower encoder max_position_embeddings
input table+first
norm last
layers encoder_layers
attention heads=encoder_attention_heads bias=1 norm=2*h
mlp ffn=encoder_ffn_dim bias=1 norm=2*h
tower decoder max_position_embeddings
input table+first
norm last
layers decoder_layers
attention heads=decoder_attention_heads bias=1 norm=2*h
attention heads=decoder_attention_heads bias=1 norm=2*h cross=1
mlp ffn=decoder_ffn_dim bias=1 norm=2*h
class ForConditionalGeneration 0 vocabulary
class MTModel 0 vocabulary
class ForSequenceClassification h*h+h+labels*(h+1)
class ForQuestionAnswering 2*(h+1)
class Model 0
passes is_encoder_decoder num_hidden_layers decoder_vocab_size decoder_layerdrop encoder_layerdrop add_bias_logits add_final_layer_norm normalize_before normalize_embedding static_position_embeddings
)",
      R"(types whisper
let h d_model
hidden h
vocabulary vocab_size
tied tie_word_embeddings:1
tower encoder max_source_positions:1500 fixed
input 3*num_mel_bins*h+h+3*h*h+h+max_source_positions:1500*h
norm 2*h
layers encoder_layers
attention heads=encoder_attention_heads out_bias=1 extra=2*h norm=2*h
mlp ffn=encoder_ffn_dim bias=1 norm=2*h
tower decoder max_target_positions:448
input max_target_positions:448*h
norm 2*h
layers decoder_layers
attention heads=decoder_attention_heads out_bias=1 extra=2*h norm=2*h
attention heads=decoder_attention_heads out_bias=1 extra=2*h norm=2*h cross=1
mlp ffn=decoder_ffn_dim bias=1 norm=2*h
class ForConditionalGeneration 0 vocabulary
class Model 0
passes is_encoder_decoder num_hidden_layers decoder_layerdrop encoder_layerdrop max_length
)",
      R"(types umt5
let h d_model
let gates is_gated_act:if(has(feed_forward_proj),says(feed_forward_proj,gated),1)
let places relative_attention_num_buckets:32*num_heads
hidden h
vocabulary vocab_size
tied if(four,tie_word_embeddings:1,1)
tower encoder 512
norm h
layers num_layers
attention heads=num_heads dim=d_kv norm=h extra=places
mlp ffn=d_ff gated=gates norm=h
tower decoder 512
norm h
layers num_decoder_layers:num_layers
attention heads=num_heads dim=d_kv norm=h extra=places
attention heads=num_heads dim=d_kv norm=h cross=1
mlp ffn=d_ff gated=gates norm=h
class ForConditionalGeneration 0 vocabulary
passes is_encoder_decoder num_hidden_layers feed_forward_proj tie_word_embeddings
)",
      R"(types albert
let h hidden_size
let e embedding_size:128
let f intermediate_size
hidden h
embedding e
vocabulary vocab_size
tied tie_word_embeddings:1
positions max_position_embeddings:512
segments type_vocab_size:2
bias 1
refuse num_hidden_groups:1!=1 num_hidden_groups
refuse inner_group_num:1!=1 inner_group_num
refuse 1-(tie_word_embeddings:1) tie_word_embeddings
tower encoder max_position_embeddings:512
input 2*e+e*h+h
layers num_hidden_layers
attention heads=num_attention_heads bias=1 norm=2*h if layer==0
mlp ffn=f bias=1 norm=2*h if layer==0
mixer saved=5*h if layer>0
mixer saved=2*f+h if layer>0
class Model h*h+h
class ForMaskedLM h*e+e+2*e vocabulary
class ForPreTraining h*e+e+2*e+h*h+h+2*h+2 vocabulary
class ForSequenceClassification h*h+h+labels*(h+1)
class ForTokenClassification labels*(h+1)
class ForQuestionAnswering 2*(h+1)
class ForMultipleChoice h*h+h+h+1
passes net_structure_type num_memory_blocks
)",
  };
  return kAll;
}

}  // namespace spillway::estimator
