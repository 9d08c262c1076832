// A line on stderr that rewrites itself, where stderr is a terminal; nothing elsewhere. One thread at a time.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

class Progress {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }

  void show(const std::string& text);
  void bar(const std::string& text, uint64_t done, uint64_t total);
  void clear();

 private:
  bool on_;
  bool shown_ = false;
};

}  // namespace spillway
