// Takes what comes in, knows who waits, and acts where nobody moves.
#include "sim/nccl/meeting.h"

#include <algorithm>
#include <utility>

namespace spillway::nccl {

Meeting::Meeting(int ranks, Send send, Observe observe)
    : ranks_(ranks), send_(std::move(send)), observe_(std::move(observe)) {}

void Meeting::connect(int process) {
  processes_[process];
}

void Meeting::disconnect(int process) {
  Process& ended = processes_[process];
  ended.live = false;
  ended.waits.clear();
  look(ended.job);
}

void Meeting::receive(int process, Message message) {
  Process& from = processes_[process];
  if (message.world_rank >= 0) from.world_rank = message.world_rank;
  if (message.kind == Kind::kTold) return told(process, message);
  from.idle = false;
  jobs_[from.job].quiet_at.reset();
  jobs_[from.job].slow_at.reset();
  switch (message.kind) {
    case Kind::kHello:
      hello(process, message);
      break;
    case Kind::kJoin:
      join(process, std::move(message));
      break;
    case Kind::kPost:
      post(process, std::move(message));
      break;
    case Kind::kStore:
      store(process, message);
      break;
    case Kind::kLeave:
      from.waits.erase(message.ticket);
      break;
    case Kind::kWait:
      wait(process, message);
      break;
    default:
      break;
  }
  look(from.job);
}

void Meeting::hello(int id, const Message& message) {
  Process& process = processes_[id];
  process.id = static_cast<pid_t>(message.count);
  process.job = message.text;
  Job& job = jobs_[process.job];
  job.expected = std::max(job.expected, imagines() ? ranks_ : message.size);
  // The rank's own process comes before those that it starts.
  process.counts = message.rank >= 0 && job.ranks.insert(message.rank).second;
}

void Meeting::wait(int id, const Message& message) {
  Process& process = processes_[id];
  if (process.answers > message.count) {
    Message wake;
    wake.kind = Kind::kWake;
    wake.ticket = message.ticket;
    send_(id, wake);
    return;
  }
  process.waits[message.ticket] = message.flag;
}

void Meeting::answer(int process, const Message& message) {
  Process& to = processes_[process];
  if (!to.live) return;
  to.unanswered.erase(message.ticket);
  ++to.answers;
  send_(process, message);
  for (const auto& [thread, may_go] : std::exchange(to.waits, {})) {
    Message wake;
    wake.kind = Kind::kWake;
    wake.ticket = thread;
    send_(process, wake);
  }
}

void Meeting::answer(const Communicator& communicator, int rank, const Message& message) {
  answer(communicator.members.at(rank), message);
}

// `all_told`: those that were asked, and wait for what is not seen, are not quiet.
bool Meeting::is_quiet(const std::string& name, bool all_told) const {
  const Job& job = jobs_.at(name);
  bool any = false;
  for (const auto& [id, process] : processes_) {
    if (process.job != name || !process.counts || !process.live) continue;
    if (process.waits.empty() && (all_told || !process.idle)) return false;
    any |= !process.waits.empty();
  }
  return any && static_cast<int>(job.ranks.size()) >= job.expected;
}

// Does what must be done where nobody in the job moves.
void Meeting::look(const std::string& job) {
  while (!verdict_ && is_quiet(job, true)) {
    if (!resolve(job)) break;
  }
  if (!verdict_ && is_quiet(job, false)) let_go(job);
}

// Answers for ranks that do not run; false if nothing waits for them.
bool Meeting::resolve(const std::string& job) {
  if (!imagines()) return false;
  for (auto& [number, communicator] : communicators_) {
    if (communicator.job != job) continue;
    if (!communicator.settled) {
      settle(communicator);
      return true;
    }
    for (const auto& [sequence, posts] : communicator.open) {
      if (posts.size() != communicator.members.size() || !is_root_missing(communicator, posts)) continue;
      finish(communicator, sequence, true);
      return true;
    }
  }
  Store& store = jobs_[job].store;
  if (!store.has_waiting()) return false;
  for (const Store::Answer& given : store.imagine()) answer(given.process, given.done);
  return true;
}

bool Meeting::let_go(const std::string& job) {
  bool any = false;
  for (auto& [id, process] : processes_) {
    if (process.job != job || !process.live) continue;
    for (auto wait = process.waits.begin(); wait != process.waits.end();) {
      if (!wait->second) {
        ++wait;
        continue;
      }
      Message wake;
      wake.kind = Kind::kWake;
      wake.ticket = wait->first;
      wake.flag = true;
      send_(id, wake);
      wait = process.waits.erase(wait);
      any = true;
    }
  }
  return any;
}

}  // namespace spillway::nccl
