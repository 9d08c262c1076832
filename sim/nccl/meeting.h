// Where the ranks of jobs meet: it matches what they post, moves bytes between them, and knows when a job
// cannot go on. Pure logic: messages in, messages out, no sockets and no clock of its own.
//
// A process is quiet when one of its threads waits. Where all processes of a job are, nothing will come any
// more: then what waits for ranks that do not run is answered as those would (peers.h), then threads that
// need not wait are let go, and if none is left that could move, it is a deadlock, which is named after a
// while in which nobody computed.
//
// Some waits are not seen, as those for a key of a store. So a process that says nothing while others wait is
// asked, once nobody computes; it is quiet too where its program is in a call that waits for other ranks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "sim/nccl/operation.h"
#include "sim/nccl/store.h"

namespace spillway::nccl {

using Clock = std::chrono::steady_clock;

// Why a job cannot go on, a line for each group of ranks.
struct Verdict {
  std::string kind;  // "deadlock" or "mismatch"
  std::vector<std::string> lines;
};

// Says what one member waits for.
struct Waiting {
  Head head;
  std::string line;
};

struct Process {
  pid_t id = 0;
  std::string job;
  int world_rank = -1;
  bool counts = false;  // it is a rank's own, not a helper that inherited its environment
  bool live = true;
  bool idle = false;  // it told so, and said nothing since
  std::string idle_at;
  uint64_t answers = 0;
  std::map<uint64_t, bool> waits;          // by thread; whether it may be let go
  std::map<uint64_t, Waiting> unanswered;  // by ticket
};

struct Transfer {
  std::optional<Message> send;
  std::optional<Message> receive;
  bool is_sent = false;  // the sender was told so
};

struct Communicator {
  uint64_t number = 0;
  std::string job;
  int size = 0;
  bool settled = false;
  std::map<int, int> members;  // rank to process
  std::map<int, Message> joins;
  std::map<uint64_t, Posts> open;
  std::map<std::tuple<int, int, uint64_t>, Transfer> transfers;
  std::map<std::pair<int, int>, Message> sent;  // last, to ranks that do not run; by rank and peer
};

class Meeting {
 public:
  // Says what a process does: CPU time used so far, in seconds, and whether a thread of it runs, or would on
  // a free CPU, or waits for a disk.
  struct Activity {
    double used = 0;
    bool is_busy = false;
  };
  using Observe = std::function<Activity(pid_t)>;
  using Send = std::function<void(int process, const Message& message)>;

  // `ranks`: how many processes of a job run, where others do not; 0: all of them do.
  Meeting(int ranks, Send send, Observe observe);

  void connect(int process);
  void receive(int process, Message message);
  void disconnect(int process);
  void tick(Clock::time_point now);

  const std::optional<Verdict>& verdict() const { return verdict_; }
  // Notes what was done where nothing was known, once each.
  const std::set<std::string>& notes() const { return notes_; }

 private:
  struct Job {
    int expected = 0;
    std::set<int> ranks;                        // that came
    std::optional<Clock::time_point> quiet_at;  // and nothing moved since
    double used = 0;
    std::optional<Clock::time_point> slow_at;  // some wait since, others say nothing
    double used_when_slow = 0;
    Store store;
  };

  bool imagines() const { return ranks_ > 0; }
  void hello(int id, const Message& message);
  void join(int id, Message message);
  void settle(Communicator& communicator);
  void post(int id, Message message);
  void transfer(Communicator& communicator, Message message);
  void answer_imagined(Communicator& communicator, Message message);
  void finish(Communicator& communicator, uint64_t sequence, bool without_root);
  void split(Communicator& communicator, const Posts& posts);
  bool is_root_missing(const Communicator& communicator, const Posts& posts) const;
  const Message* sibling(const Posts& posts, int size) const;
  void wait(int id, const Message& message);
  void answer(int process, const Message& message);
  void answer(const Communicator& communicator, int rank, const Message& message);
  void store(int id, const Message& message);
  void told(int id, const Message& message);
  void ask_idle(const std::string& name, Job& job, Clock::time_point now);
  void judge(const std::string& name, Job& job, Clock::time_point now);
  bool is_quiet(const std::string& job, bool all_told) const;
  void look(const std::string& job);
  bool resolve(const std::string& job);
  bool let_go(const std::string& job);
  void condemn(const std::string& job, const char* kind, std::vector<std::string> lines);
  std::vector<std::string> complaints(const std::string& job) const;
  Activity activity_of(const std::string& job) const;

  int ranks_;
  Send send_;
  Observe observe_;
  std::map<int, Process> processes_;
  std::map<std::string, Job> jobs_;
  std::map<uint64_t, Communicator> communicators_;
  std::map<std::string, uint64_t> unsettled_;  // by id
  // Keeps what real roots broadcast, by size, root, sequence, count and type: for those that do not run.
  using Likeness = std::tuple<int, int, uint64_t, uint64_t, int>;
  std::map<Likeness, Message> broadcasts_;
  uint64_t next_ = 1;
  std::optional<Verdict> verdict_;
  std::set<std::string> notes_;
};

// "rank 3", "ranks 0-2,5".
std::string ranks_text(const std::set<int>& ranks);

}  // namespace spillway::nccl
