// Tells what comes before what in a graph that is being captured: whether work that other streams did with a
// block, all of it captured, is over before whatever one stream is told next. Then the block's memory may be
// used again in the same graph, where no event can say so.
//
// A stream's tail are the nodes that its next work will come after; work is over before that if all nodes
// that the other stream's tail had at the free are the tail's or before it. Nodes are compared, never used,
// unless their capture is going on. Not thread-safe; guarded by the heap's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "driver/driver.h"

namespace spillway {

struct CaptureTail {
  uint64_t capture = 0;  // no two captures have the same; never 0
  std::vector<CUgraphNode> nodes;
};

// Returns the tail of a stream that is being captured now; nothing for any other, or where the driver does
// not tell. Makes one driver call, legal at any time.
std::optional<CaptureTail> capture_tail(const Driver& driver, CUstream stream);

class CapturedOrder {
 public:
  // Notes what the stream's next work will come after. Looks at each node of a graph once.
  void look(const Driver& driver, CUstream stream);
  // Tells whether all of `earlier` comes before the stream's next work, as of the last look.
  bool is_behind(const CaptureTail& earlier) const;

 private:
  void add(const Driver& driver, CUgraphNode node);

  uint64_t capture_ = 0;  // 0: the stream was not being captured
  std::unordered_set<CUgraphNode> before_;
  std::vector<CUgraphNode> waiting_;
};

}  // namespace spillway
