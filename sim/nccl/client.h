// This process's end of the meeting: posts what its ranks give, and keeps what comes back until the streams
// take it.
//
// The meeting is that of SPILLWAY_DRYRUN_MEETING, the name of a socket. Without it the process is alone, and
// every other rank of its communicators is taken to do as it does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "sim/nccl/wire.h"

namespace spillway::nccl {

// Takes the answer to a post; runs on the client's thread.
struct Receiver {
  virtual ~Receiver() = default;
  virtual void receive(Message message) = 0;
};

class Client {
 public:
  // Connected. Null: there is no meeting of that name (any more).
  static Client* get();

  // Sets the ticket and sends. The receiver is kept until its answer came.
  void post(Message message, std::shared_ptr<Receiver> receiver);
  // Waits until `is_over` says so, which is asked after each answer. `may_go`: only as long as anybody moves.
  template <typename IsOver>
  void wait(bool may_go, IsOver is_over) {
    for (;;) {
      const uint64_t seen = looked();
      if (is_over() || !wait_for_answer(may_go, seen)) return;
    }
  }
  uint64_t looked() const { return answers_.load(std::memory_order_acquire); }
  // False when the thread may go on though nothing came.
  bool wait_for_answer(bool may_go, uint64_t seen);

  // Lets every thread that waits look again: something happened in this process.
  void stir();

  bool is_broken() const { return broken_.load(); }

 private:
  explicit Client(int socket);
  void say_hello();
  void send(const Message& message);
  void serve();
  void receive(Message message);

  int socket_;
  std::mutex sending_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::map<uint64_t, std::shared_ptr<Receiver>> receivers_;
  enum class Wake { kWaits, kAnswer, kLetGo, kStirred };
  std::map<uint64_t, Wake> wakes_;  // by thread: kWaits until something came
  std::atomic<uint64_t> answers_{0};
  std::atomic<uint64_t> next_{1};
  std::atomic<bool> broken_{false};
};

// Returns what the program's language tells about where it is: a line and the rank in the world, or "" and
// -1.
struct Place {
  std::string line;
  int world_rank = -1;
};
Place place();

// As spwNcclSetReality was told.
bool is_real(const void* ptr, uint64_t bytes);
void set_real(const void* ptr, uint64_t bytes, bool real);

}  // namespace spillway::nccl

extern "C" {
// `where` writes the program's line and its rank; `now` the line that its main thread is at, and answers
// whether PyTorch waits for other ranks there; `end` is to end the process, told why. Null: none (any more).
void spwNcclSetProgram(void (*where)(char* text, size_t bytes, int* world_rank),
                       int (*now)(char* text, size_t bytes), void (*end)(const char* text));
// A call of the job's store (wire.h, StoreCall): blocks until it is answered. `number` is what it gives and
// gets, `bytes` the size of `value`, then that of what comes back, which is kept until the thread's next
// call. 0: there is no meeting.
int spwNcclStore(int call, const char* key, const void* value, size_t* bytes, int64_t* number,
                 const void** answer);
// Tells what is known of values (SPILLWAY_DRYRUN_VALUES): whether bytes at a device address are what a GPU
// would have, and a note of it. Null: nothing is known, and what arrives counts as such.
void spwNcclSetReality(int (*is_real)(uint64_t ptr, uint64_t bytes),
                       void (*set_real)(uint64_t ptr, uint64_t bytes, int real));
// Joins the meeting before the first communicator, as a rank of a job does that may never make one.
void spwNcclConnect(void);
}
