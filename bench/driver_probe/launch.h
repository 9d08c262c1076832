// Kernels and graphs for sections that launch their own: a module of PTX, launches that may begin before the
// one before them is done, and captured graphs. All throw Failure where the driver refuses.
#pragma once

#include <functional>

#include "bench/driver_probe/session.h"

namespace spillway::probe {

class Module {
 public:
  Module(const Session& session, const char* ptx);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module() { session_->driver().cuModuleUnload(module_); }
  CUfunction function(const char* name) const;

 private:
  const Session* session_;
  CUmodule module_ = nullptr;
};

struct Shape {
  unsigned blocks;
  unsigned threads;
  bool dependent = false;  // a programmatic dependent launch: it may begin before the one before it is done
};

void launch_with(const Session& session, CUfunction function, const Shape& shape, CUstream stream,
                 void** arguments);

// Arguments have the types that the kernel's parameters have.
template <typename... Argument>
void launch(const Session& session, CUfunction function, const Shape& shape, CUstream stream,
            Argument... arguments) {
  void* pointers[] = {&arguments...};
  launch_with(session, function, shape, stream, pointers);
}

// Returns what `enqueue` puts on the stream, captured and instantiated.
class Graph {
 public:
  Graph(const Session& session, CUstream stream, const std::function<void()>& enqueue);
  Graph(Graph&& other) noexcept : session_(other.session_), graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;
  ~Graph();
  void launch(CUstream stream) const;

 private:
  const Session* session_;
  CUgraphExec graph_ = nullptr;
};

}  // namespace spillway::probe
