// Says what an answer of `spillway doctor` means for who asked: all is well, something is slower or missing,
// or Spillway cannot serve; and what to do.
#pragma once

#include <cstdint>
#include <string>

#include "cli/doctor/checks.h"

namespace spillway {

enum class Grade : uint8_t { kOk, kWarn, kBad };
const char* word_of(Grade grade);

struct Graded {
  Grade grade = Grade::kOk;
  std::string advice;  // empty: nothing is to be done
};

Graded grade_of(const Check& check);

}  // namespace spillway
