// Knows what stands on a model's layers, by the class that `architectures` of its file names.
#pragma once

#include <string>

#include "estimator/inputs/hugging_face_families.h"
#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

// The class that the file names; empty where it names none.
std::string class_name(KeyValues& values, const std::string& prefix);
// How many classes a classifier has: two where the file does not say.
int64_t label_count(KeyValues& values, const std::string& prefix);

// Gives `model`, which is as the type's usual class has it, the head of the class that the file names. A
// class that is not known is left as it is, and warned of.
void set_head(KeyValues& values, const std::string& prefix, const Family& family, Model& model, Notes& notes);

}  // namespace spillway::estimator
