// The full screen of `spillway top`: a line for each process, all of the chosen one below, and what keys do
// to it. Pure: no terminal, no clock, nobody is killed here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/top/view.h"

namespace spillway {

struct TopScreen {
  TopSort sort = TopSort::kReserved;
  std::string filter;
  bool is_typing = false;  // the filter
  bool shows_help = false;
  bool shows_ended = false;  // else they are counted
  pid_t chosen = 0;          // 0: the first
  pid_t asked_about = 0;     // whether to end it
  std::string message;       // of the last key
};

enum class TopKey : uint8_t { kNothing, kQuit, kEnd };  // kEnd: SIGTERM to the one that was asked about

// Does what the key stands for; `key` is one letter, or the sequence of an arrow ("\x1b[A").
TopKey press(TopScreen& screen, const std::string& key, const LiveListing& listing);

// At most `rows` lines.
std::vector<std::string> screen_lines(const TopScreen& screen, const LiveListing& listing, int64_t now_ns,
                                      const TopStyle& style, size_t rows);

}  // namespace spillway
