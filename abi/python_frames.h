// The frames of the Python code that the calling thread runs, by the interpreter's public functions, found in
// the program when first asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "stats/stack_table.h"

namespace spillway {

// Holds what one frame is known by: its code object, and where in it. The code object is kept for good once
// named.
struct PythonFrame {
  uintptr_t code = 0;
  uint64_t position = 0;
};

class PythonLock {
 public:
  // Finds out whether the thread has Python frames; the interpreter's lock is held then.
  PythonLock();
  ~PythonLock();
  PythonLock(const PythonLock&) = delete;
  PythonLock& operator=(const PythonLock&) = delete;
  bool held() const { return held_; }
  // Tells whether the thread has the interpreter's lock already. Takes nothing, and waits for nothing.
  static bool is_held();

 private:
  bool held_ = false;
  bool taken_ = false;
  int state_ = 0;
};

// Needs the lock held. The code objects live as long as their frames do: until the thread goes on.
int list_python_frames(PythonFrame* frames, int most);
// Names them, and keeps their code objects for good, so that no other gets the same address. Of no frames it
// asks nothing of the interpreter, which need not be there, nor its lock held.
void name_python_frames(const PythonFrame* frames, int count, std::vector<StackFrame>& out);

}  // namespace spillway
