#include "stats/redact.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <map>

#include "stats/dump.h"

namespace spillway {
namespace {

// Tells whether the letter separates words of free text. A colon does not: it is part of "file.py:12" and of
// "https://".
bool separates(char letter) {
  return std::isspace(static_cast<unsigned char>(letter)) != 0 ||
         std::string_view("\"'`()[]{}<>,;=|").find(letter) != std::string_view::npos;
}

bool is_path(std::string_view word) {
  const size_t slash = word.find('/');
  if (slash == std::string_view::npos) return false;
  const std::string_view before = word.substr(0, slash);
  return before.empty() || before == "~" || before == "." || before == ".." || before.back() == ':' ||
         word.find('/', slash + 1) != std::string_view::npos;
}

bool is_name_letter(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == '-';
}

void replace_name(std::string& word, const std::string& name, std::string_view instead) {
  if (name.empty()) return;
  for (size_t at = word.find(name); at != std::string::npos; at = word.find(name, at)) {
    const size_t end = at + name.size();
    const bool whole =
        (at == 0 || !is_name_letter(word[at - 1])) && (end == word.size() || !is_name_letter(word[end]));
    if (whole) word.replace(at, name.size(), instead);
    at += whole ? instead.size() : 1;
  }
}

std::string redact_word(std::string_view word, const PrivateNames& names) {
  std::string out = is_path(word) ? redact_path(word) : std::string(word);
  // The longest first: a machine's full name holds its first part.
  for (const std::string& host : names.hosts) replace_name(out, host, "<host>");
  for (const std::string& user : names.users) replace_name(out, user, "<user>");
  return out;
}

void add_name(std::vector<std::string>& names, std::string name) {
  if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) {
    names.push_back(std::move(name));
  }
}

}  // namespace

PrivateNames this_machine() {
  PrivateNames names;
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) {
    const std::string full = host.data();
    add_name(names.hosts, full);
    add_name(names.hosts, full.substr(0, full.find('.')));
  }
  for (const char* variable : {"USER", "LOGNAME"}) {
    if (const char* user = std::getenv(variable); user != nullptr) add_name(names.users, user);
  }
  if (const char* home = std::getenv("HOME"); home != nullptr) add_name(names.users, redact_path(home));
  return names;
}

std::string redact_path(std::string_view path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string_view::npos) return std::string(path.substr(0, 1));  // the root, or nothing
  const size_t slash = path.rfind('/', end);
  const size_t first = slash == std::string_view::npos ? 0 : slash + 1;
  return std::string(path.substr(first, end + 1 - first));
}

std::string redact_text(std::string_view text, const PrivateNames& names) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (separates(text[at])) {
      out += text[at++];
      continue;
    }
    size_t end = at;
    while (end < text.size() && !separates(text[end])) ++end;
    out += redact_word(text.substr(at, end - at), names);
    at = end;
  }
  return out;
}

void redact_frame(std::string& name, std::string& filename) {
  name = redact_text(name);
  filename = redact_path(filename);
}

void redact(Dump& dump, const PrivateNames& names) {
  for (auto& [option, value] : dump.config) {
    value = option == "spill_dir" ? redact_path(value) : redact_text(value, names);
  }
  for (std::vector<StackFrame>& stack : dump.stacks) {
    for (StackFrame& frame : stack) redact_frame(frame.function, frame.file);
  }
  for (DumpDevice& device : dump.devices) {
    std::map<std::string, uint64_t> annotations;
    for (const auto& [name, bytes] : device.annotations) annotations[redact_text(name, names)] += bytes;
    device.annotations = std::move(annotations);
    if (!device.tiers) continue;
    for (DumpRegion& region : device.tiers->regions) region.tag = redact_text(region.tag, names);
  }
}

}  // namespace spillway
