// The store of a job, in which its ranks leave each other keys. Who asks for a key that is not there waits
// for it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/nccl/wire.h"

namespace spillway::nccl {

class Store {
 public:
  struct Answer {
    int process;
    Message done;
  };

  // The answers that the call made possible, to whoever waited.
  std::vector<Answer> call(int process, const Message& message);
  bool has_waiting() const { return !waiting_.empty(); }
  // Sets what the first that waits misses, as ranks that do not run would have: what a rank that runs has
  // under a key that differs in a rank only, or nothing.
  std::vector<Answer> imagine();

 private:
  struct Waiting {
    int process;
    uint64_t ticket;
    std::vector<std::string> keys;
    bool gets;
  };

  bool has(const std::vector<std::string>& keys) const;
  std::string like(const std::string& key) const;
  std::vector<Answer> satisfied();

  std::map<std::string, std::string> values_;
  std::vector<Waiting> waiting_;
};

}  // namespace spillway::nccl
