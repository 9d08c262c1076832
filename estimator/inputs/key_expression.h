// Arithmetic over the keys of a model's file, as descriptions of models write it:
//
//   expand:2*hidden_size                a key, or what it is where the file does not say; without ":2" it
//   must say n_heads|num_attention_heads         a key under the first of these names that the file has
//   if(a<b,x,y)  min(x,y)  max(x,y)  ceil(x,y)  (the last: x/y, rounded up)
//   has(key)  is(key,word,...)          is the text one of the words
//   says(key,word)                      is the word in the text
//   at(key,word,...)                    is this layer's entry of a list one of the words
//   in(key)                             is this layer's number in a list
//   each(key)                           this layer's entry of a list of numbers, or the number
//   count(key[,word,...])               entries of a list, those that are one of the words
//   before(key,word,...)                the same, of the layers before this one
//   has_section(key)                    has the file an object of that name, or null there
//   own(key)                            this layer's entry of the key in per_layer_config, or the key
//
// True is 1, false 0; numbers are whole ones. `layer` is the number of the layer that is described, `labels`
// how many classes a classifier has.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/inputs/key_values.h"

namespace spillway::estimator {

class KeyExpressions {
 public:
  KeyExpressions(KeyValues& values, std::string prefix) : values_(values), prefix_(std::move(prefix)) {}

  // A name for an expression, which is evaluated wherever the name stands.
  void define(std::string_view name, std::string_view expression) { names_[std::string(name)] = expression; }
  void set(std::string_view name, int64_t value) { names_[std::string(name)] = std::to_string(value); }

  // Complains through the values of a key that is missing or no number; of an expression that is none, which
  // only a mistaken description has.
  int64_t evaluate(std::string_view expression);

 private:
  friend class Evaluation;

  KeyValues& values_;
  std::string prefix_;
  std::map<std::string, std::string> names_ = {};
  std::map<std::string, std::vector<std::string>> lists_ = {};  // entries, by key
  int depth_ = 0;                                               // of names in names
};

}  // namespace spillway::estimator
