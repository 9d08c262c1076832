#include "cli/report/stacks.h"

#include <fmt/format.h>

#include <algorithm>

#include "stats/call_site.h"
#include "stats/native_frame.h"

namespace spillway {
namespace {

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

// Returns what is behind the folder that Python looks for modules in; of a file of the program's own, its
// name.
std::string_view below_search_folder(std::string_view path) {
  for (const std::string_view folder : {"/site-packages/", "/dist-packages/"}) {
    if (const size_t at = path.rfind(folder); at != std::string_view::npos)
      return path.substr(at + folder.size());
  }
  if (const size_t at = path.find("/lib/python3"); at != std::string_view::npos) {
    if (const size_t end = path.find('/', at + 5); end != std::string_view::npos) return path.substr(end + 1);
  }
  return base_name(path);
}

}  // namespace

bool is_shown(std::string_view function, std::string_view file) {
  return file.ends_with(".py") || !operator_of(function).empty();
}

bool ListedFrame::is_python() const {
  return file.ends_with(".py");
}

std::string ListedFrame::text() const {
  if (is_python()) return fmt::format("{} ({}:{})", function, base_name(file), line);
  if (const std::string_view name = operator_of(function); !name.empty()) return std::string(name);
  return is_programs_own(function, file) ? native_text(function, file, static_cast<uint64_t>(line)) : "";
}

std::string ListedFrame::module() const {
  if (!is_python()) return is_programs_own(function, file) ? std::string(base_name(file)) : text();
  std::string out(below_search_folder(file));
  out.resize(out.size() - 3);
  std::replace(out.begin(), out.end(), '/', '.');
  return out;
}

uint32_t Stacks::frame(std::string_view function, std::string_view file, int64_t line) {
  const auto number = static_cast<uint32_t>(frames_.size());
  const auto [found, added] =
      frame_numbers_.try_emplace(fmt::format("{}\n{}\n{}", function, file, line), number);
  if (added) frames_.push_back({std::string(function), std::string(file), line});
  return found->second;
}

uint32_t Stacks::stack(const std::vector<uint32_t>& frames) {
  if (frames.empty()) return 0;
  const auto [found, added] = stack_numbers_.try_emplace(frames, static_cast<uint32_t>(stacks_.size()));
  if (added) stacks_.push_back(frames);
  return found->second;
}

}  // namespace spillway
