// Programs that never come around: every size is drawn anew, so that no request is what it was before. Each
// is a sequence of steps that depends on its seed alone, so that contenders are given the same one.
//
//   serving    96 live requests of 6 blocks, 4 KiB to 16 MiB; a step replaces one, with 5 temporaries of up
//              to 128 MiB on the way
//   replace    512 live blocks of 512 B to 64 MiB; a step replaces one
//   varlen     28 layers whose activations have another length in each step: forth, and back
//   drift      512 live blocks, sizes within a factor of four of a mean that wanders from 64 KiB to 64 MiB
//   buckets    as replace, of 32 sizes that are asked for in no order
//
// Sizes are uniform in the logarithm.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace spillway::bench {

// Serves a program, which ends where it is given null. What a program asks for depends on no address, so that
// it can be counted without any memory.
struct Server {
  std::function<void*(uint64_t bytes)> allocate;
  std::function<void(void* block, uint64_t bytes)> free;
};

class Program {
 public:
  virtual ~Program() = default;
  // Throws std::bad_alloc when it is refused.
  virtual void step(Server& server) = 0;
  // Frees what it has, where no step was refused.
  virtual void end(Server& server) = 0;

  // Calls of the server so far, frees included.
  uint64_t calls() const { return calls_; }

 protected:
  struct Block {
    void* at = nullptr;
    uint64_t bytes = 0;
  };

  explicit Program(uint64_t seed) : random_(seed) {}
  Block allocate(Server& server, uint64_t bytes);
  void free(Server& server, Block& block);
  uint64_t between(uint64_t fewest_bytes, uint64_t most_bytes);  // uniform in the logarithm
  size_t index(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }

 private:
  std::mt19937_64 random_;
  uint64_t calls_ = 0;
};

// The names above.
const std::vector<std::string>& program_names();
// `scale` divides what is live at once, for threads that share a program's work.
std::unique_ptr<Program> make_program(const std::string& name, uint64_t seed, uint32_t scale);

}  // namespace spillway::bench
