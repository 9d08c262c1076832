// One operation of a communicator: what each member gave, whether they agree, and what each gets.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/nccl/wire.h"

namespace spillway::nccl {

// As "all_gather of 4 x float32".
std::string describe(const Head& head);

// Tells whether two members may meet in these: the same operation, count, type, root and reduction.
bool agree(const Head& one, const Head& other);

// By rank of the communicator.
using Posts = std::map<int, Message>;

// Computes what each member gets of a collective that all members posted and agree on. `size`: of the
// communicator, whose other ranks do not run. Without bytes where a member gave none, or where the root of a
// broadcast does not run.
class Results {
 public:
  Results(const Posts& posts, int size);
  // Sets what the member gets.
  void give(int rank, Message& to) const;

 private:
  std::vector<char> gathered() const;
  std::vector<char> exchanged(int rank) const;
  std::vector<char> reduced(uint64_t from, uint64_t count) const;

  const Posts& posts_;
  const Head& head_;
  int size_;
  std::vector<int> real_;
  bool has_bytes_ = true;
  bool is_real_ = true;
  std::vector<char> common_;
};

}  // namespace spillway::nccl
