#include "cli/launch/crashes.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

namespace spillway {
namespace {

// Python's own and PyTorch's files are not the program's.
bool is_programs(const std::string& file) {
  const auto has = [&](const char* part) { return file.find(part) != std::string::npos; };
  if (has("/torch/") || has("/spillway/_") || has("<frozen ")) return false;
  return has("/site-packages/") || has("/dist-packages/") || !has("/lib/python3");
}

std::string line_of(const std::string& path, int number) {
  std::ifstream file(path);
  std::string line;
  for (int at = 0; at < number && std::getline(file, line); ++at) {
  }
  const size_t begin = line.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : ": " + line.substr(begin);
}

// Returns the place of "  File \"program.py\", line 3 in main".
std::string place_of(const std::string& frame) {
  constexpr const char* kBegin = "  File \"";
  constexpr const char* kMiddle = "\", line ";
  const size_t begin = frame.rfind(kBegin, 0) == 0 ? std::string(kBegin).size() : std::string::npos;
  const size_t middle = frame.find(kMiddle);
  if (begin == std::string::npos || middle == std::string::npos) return "";
  const std::string file = frame.substr(begin, middle - begin);
  const int line = std::atoi(frame.c_str() + middle + std::string(kMiddle).size());
  if (!is_programs(file)) return "";
  return fmt::format("{}:{}{}", file, line, line_of(file, line));
}

// Holds what the handlers of signals wrote: the address and what it is of, the signal's name, lines,
// innermost first.
std::string killed(const std::filesystem::path& path) {
  constexpr const char* kFatal = "Fatal Python error: ";
  std::ifstream file(path);
  std::string signal;
  std::string address;
  std::string where;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("address ", 0) == 0) address = line.substr(std::string("address ").size());
    if (line.rfind(kFatal, 0) == 0) signal = line.substr(std::string(kFatal).size());
    if (where.empty()) where = place_of(line);
  }
  if (signal.empty()) return "";
  std::string out = signal;
  const size_t space = address.find(' ');
  const std::string fate = space == std::string::npos ? "" : address.substr(space + 1);
  if (fate == "mapped") out += ": the host used device memory";
  if (fate == "already freed" || fate == "already unmapped")
    out += fmt::format(": the host used device memory that is {}", fate);
  if (!fate.empty() && fate != "never mapped") out += ", 0x" + address.substr(0, space) + ",";
  return where.empty() ? out : out + " at " + where;
}

}  // namespace

std::string crash_of(const nlohmann::json& result, const std::filesystem::path& file) {
  const int rank = result.is_object() ? result.value("rank", 0) : 0;
  if (result.is_object() && result.contains("misuse")) {
    const nlohmann::json& misuse = result["misuse"];
    return fmt::format("rank {} died at {}: {}", rank, misuse.value("where", std::string("?")),
                       misuse.value("text", std::string()));
  }
  if (result.is_object() && result.value("complete", false)) return "";
  std::filesystem::path beside = file;
  const std::string said = killed(beside.replace_extension(".crash"));
  return said.empty() ? "" : fmt::format("rank {} died of a signal: {}", rank, said);
}

}  // namespace spillway
