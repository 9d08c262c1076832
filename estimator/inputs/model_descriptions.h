// Descriptions of models, one for each kind, in lines without spaces inside expressions (key_expression.h):
//
//   types NAME...                values of model_type
//   let NAME EXPRESSION          a name for an expression
//   hidden|embedding|vocabulary|tied|positions|segments|bias EXPRESSION
//   tower NAME TOKENS [fixed [PIXELS]]  PIXELS of a token, where images have any size; then, for this tower:
//   input EXPRESSION             what stands before its layers
//   sharded EXPRESSION           more of that, which tensor-parallel ranks divide
//   norm EXPRESSION              what stands behind its layers
//   layers COUNT                 then each layer's blocks in their order, each with an `if EXPRESSION`:
//     attention heads= kv= dim= bias= qkv_bias= out_bias= norm= head_norms= extra= cross=
//               shares_keys= makes_keys= keys_are_values= sees_all= gated= input= (as in model.h)
//               (SharedWeights, of `mlp` too: set= first= rank=)
//               (latent: q_rank= kv_rank= nope= rope= value=)
//     mlp       ffn= gated= bias= norm=
//     experts   count= top= ffn= shared= gated= bias= router_bias= shared_gate= norm=
//     mixer     matrix= other= norm= saved= conv= state= input=
//               (elements: `saved` for each token, `conv` and `state` for each sequence of generated text)
//               (Gemma 3n: versions= rank=; state space: heads= dim= states= groups= kernel= chunk= bias=
//               out_bias= conv_bias= normed=; the first Mamba: inner= states= rank= kernel= bias= conv_bias=
//               norms=; short convolution: kernel= bias=; MiniMax: heads= dim= block=)
//               (a projection behind shared blocks: projection=1)
//               (delta net: key_heads= value_heads= key_dim= value_dim= kernel= joined=)
//   class ENDING PARAMETERS [vocabulary]      the head of classes that end so; the first is the usual one
//   refuse EXPRESSION KEY [ALLOWED]  where the expression is true the key is not modelled, or not allowed
//   (in expressions: layer, its number; labels, of a classifier; four, whether transformers 4 runs it)
//   warn EXPRESSION TEXT         what is said where the expression is true
//   passes KEY...                keys that change nothing here
//
// Composite models have other lines: `vision TYPE`, the tower's where the file does not name one that is
// described; `connector merged= in= inner= out= halves= bias= count= other=`, a Connector of model.h; `warn`
// as above; `passes SECTION.`, a part of the file of which the rest changes nothing. Keys are those of the
// language part, `vision_config.` those of the tower and `whole.` those beside both; `text` is the language
// part's width, `v` the tower's, `tokens` how many an image has.
//
// Sources: transformers 4.57 and 5.17, models/<type>/modeling_<type>.py.
#pragma once

#include <string_view>
#include <vector>

namespace spillway::estimator {

// What stands between the characters `at`, without the empty parts: a description's lines, a line's words.
std::vector<std::string_view> split(std::string_view text, char at);

const std::vector<std::string_view>& encoder_descriptions();
const std::vector<std::string_view>& decoder_descriptions();
const std::vector<std::string_view>& vision_descriptions();
const std::vector<std::string_view>& tower_descriptions();  // of composite models alone
const std::vector<std::string_view>& vision_language_descriptions();

}  // namespace spillway::estimator
