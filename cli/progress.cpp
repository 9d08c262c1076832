#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

namespace spillway {

Progress::Progress() : on_(isatty(STDERR_FILENO) == 1) {}

void Progress::show(const std::string& text) {
  if (!on_) return;
  std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void Progress::bar(const std::string& text, uint64_t done, uint64_t total) {
  constexpr uint64_t kWidth = 30;
  const uint64_t full = total == 0 ? kWidth : std::min(kWidth, kWidth * done / total);
  show(fmt::format("{} [{:<{}}] {}/{}", text, std::string(full, '#'), kWidth, done, total));
}

void Progress::clear() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
  shown_ = false;
}

}  // namespace spillway
