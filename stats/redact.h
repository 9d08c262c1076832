// Takes out of dumps, snapshots and reports what says where and by whom they were made: folders, names of
// machines, names of users. What is left of a path is its last component. What the program itself named, tags
// and annotations, stays, but for such names in it; so do the devices' UUIDs.
//
// Pure functions, thread-safe. They throw std::bad_alloc only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

struct Dump;

struct PrivateNames {
  std::vector<std::string> hosts;
  std::vector<std::string> users;
};

// Returns the names of this machine, with its name's first part, and of the user the process runs for. Of
// what others wrote, only paths can be known.
PrivateNames this_machine();

// The last component: "/home/ann/train.py" becomes "train.py". Text without '/' stays: "<frozen runpy>".
std::string redact_path(std::string_view path);

// Free text: each path in it becomes its last component, each whole word that is one of these names "<host>"
// or "<user>". A path begins a word, with '/', '~/', './', '../' or a scheme, or holds two slashes at least.
std::string redact_text(std::string_view text, const PrivateNames& names = {});

// A stack frame as PyTorch's snapshots have it; `name` is a function's, and may hold a path for a library's.
void redact_frame(std::string& name, std::string& filename);

// All texts of the dump.
void redact(Dump& dump, const PrivateNames& names);

}  // namespace spillway
