// Where blocks were allocated, whole: the stacks of a file, each held once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace spillway {

struct ListedFrame {
  std::string function;
  std::string file;  // empty: not known
  int64_t line = 0;

  bool is_python() const;
  // "train (train.py:14)"; of what is not Python, the operator that it belongs to, or the function.
  std::string text() const;
  // "torch.nn.modules.linear", the Python module by its file; an operator as text(); else the file.
  std::string module() const;
};

// Tells whether a frame says anything to a reader of reports: a line of Python, or an operator. Of stacks
// without any, the program's own C++ (stats/native_frame.h) is shown.
bool is_shown(std::string_view function, std::string_view file);

class Stacks {
 public:
  // Numbers of frames, innermost first, become the number of a stack; equal ones get the same.
  uint32_t frame(std::string_view function, std::string_view file, int64_t line);
  uint32_t stack(const std::vector<uint32_t>& frames);

  const ListedFrame& frame(uint32_t number) const { return frames_[number]; }
  // Empty for 0, which is no stack.
  const std::vector<uint32_t>& frames_of(uint32_t stack) const { return stacks_[stack]; }
  size_t size() const { return stacks_.size(); }

 private:
  std::vector<ListedFrame> frames_;
  std::vector<std::vector<uint32_t>> stacks_ = {{}};
  std::unordered_map<std::string, uint32_t> frame_numbers_;
  std::map<std::vector<uint32_t>, uint32_t> stack_numbers_;
};

}  // namespace spillway
