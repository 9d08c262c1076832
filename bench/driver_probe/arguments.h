// The probe's options and how they are read.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "driver/status.h"

namespace spillway::probe {

struct Options {
  int device = 0;
  int repeats = 20;
  // Live mappings after which the search for the limit stops; 0 leaves it out.
  int max_mappings = 0;
  size_t copy_bytes = size_t{256} << 20;
  // How much is created and given back as one trim, where so much is free.
  size_t trim_bytes = size_t{64} << 30;
  // How much address space is mapped to see what that takes.
  size_t mapped_bytes = size_t{32} << 30;
  int section_seconds = 150;
  int total_seconds = 86400;
  std::string output;
  // Names of sections; empty: those that are on by default.
  std::vector<std::string> sections;
  // A section, or SECTION.QUESTION, to be measured in this process; empty: each in one of its own.
  std::string alone;
  bool help = false;
};

// Returns what --help prints.
std::string usage();
// Fills options. Errors: one line that names what is allowed.
Status parse(int argc, char** argv, Options& options);
// The options that another process of the probe measures with, as its arguments.
std::vector<std::string> measuring_arguments(const Options& options);

}  // namespace spillway::probe
