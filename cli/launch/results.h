// Reads what the processes of a dry run left, and judges it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/launch/meeting.h"

namespace spillway {

// Holds what the program's processes left in the folder, one file each.
struct DryrunResults {
  bool watched = false;               // some process had PyTorch and said so
  bool complete = true;               // each that used CUDA said what it used
  std::vector<nlohmann::json> users;  // of CUDA, by rank
  std::vector<std::string> crashes;   // what programs did that ended them, a line each
  MeetingResult met;
};

DryrunResults results_in(const std::filesystem::path& folder);

// The largest of all processes and devices, of the member of that name.
uint64_t most_bytes(const DryrunResults& results, const char* member);

enum class DryrunVerdict { kFits, kNothingUsed, kOutOfMemory, kStuck, kFailed, kEnded, kNotKnown };

const char* name_of(DryrunVerdict verdict);
// Judges a program that ended with the code, by itself or because a signal asked it to.
DryrunVerdict judge(const DryrunResults& results, int code, bool is_signalled);
// As of all commands: 2 is a no. What is not known is no success.
int exit_code(DryrunVerdict verdict, int code);
// As a sentence. `signal`: by which it was ended, or asked to end; 0: none.
std::string explain(DryrunVerdict verdict, const DryrunResults& results, int code, int signal);

}  // namespace spillway
