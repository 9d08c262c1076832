#include "sim/nccl/meeting.h"

#include <algorithm>
#include <cstring>
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

// ---- communicators

void Meeting::join(int id, Message message) {
  Process& process = processes_[id];
  if (!process.counts) {
    process.counts = true;
    jobs_[process.job].ranks.insert(process.world_rank >= 0 ? process.world_rank : -1 - id);
  }
  uint64_t& number = unsettled_[message.text];
  if (number == 0) number = next_++;
  Communicator& communicator = communicators_[number];
  communicator.number = number;
  communicator.job = process.job;
  communicator.size = message.size;
  process.unanswered[message.ticket] = {message, std::string(message.bytes.begin(), message.bytes.end())};
  const int rank = message.rank;
  communicator.members[rank] = id;
  communicator.joins[rank] = std::move(message);
  if (!imagines()) {
    Job& job = jobs_[process.job];
    std::set<int> distinct;
    for (const auto& [at, member] : communicator.members) distinct.insert(member);
    if (distinct.size() > 1 || communicator.members.size() == 1)
      job.expected = std::max(job.expected, communicator.size);
    if (static_cast<int>(communicator.members.size()) == communicator.size && distinct.size() == 1)
      job.expected = 1;
  }
  if (static_cast<int>(communicator.members.size()) == communicator.size) settle(communicator);
}

void Meeting::settle(Communicator& communicator) {
  communicator.settled = true;
  for (auto& [rank, joined] : communicator.joins) {
    unsettled_.erase(joined.text);
    Message done;
    done.kind = Kind::kDone;
    done.ticket = joined.ticket;
    done.communicator = communicator.number;
    done.rank = rank;
    done.size = communicator.size;
    answer(communicator, rank, done);
  }
  communicator.joins.clear();
}

// Each member gives its colour and key, and gets the number of the new communicator with its rank and size
// there, or none.
void Meeting::split(Communicator& parent, const Posts& posts) {
  std::map<int32_t, std::vector<std::pair<int32_t, int>>> colours;
  for (const auto& [rank, post] : posts) {
    int32_t given[2];
    std::memcpy(given, post.bytes.data(), sizeof given);
    if (given[0] >= 0) colours[given[0]].emplace_back(given[1], rank);
  }
  std::map<int, Message> answers;
  for (const auto& [rank, post] : posts) answers[rank].ticket = post.ticket;
  for (auto& [colour, members] : colours) {
    std::sort(members.begin(), members.end());
    const uint64_t number = next_++;
    Communicator& made = communicators_[number];
    made.number = number;
    made.job = parent.job;
    made.settled = true;
    // Of members that do not run only this is known: keys are ranks.
    made.size = imagines() ? std::max<int>(members.back().first + 1, static_cast<int>(members.size()))
                           : static_cast<int>(members.size());
    for (size_t i = 0; i < members.size(); ++i) {
      const int rank = imagines() ? members[i].first : static_cast<int>(i);
      made.members[rank] = parent.members.at(members[i].second);
      Message& done = answers[members[i].second];
      done.communicator = number;
      done.rank = rank;
      done.size = made.size;
    }
  }
  for (auto& [rank, done] : answers) {
    done.kind = Kind::kDone;
    answer(parent, rank, done);
  }
}

// ---- operations

void Meeting::post(int id, Message message) {
  const auto found = communicators_.find(message.communicator);
  if (found == communicators_.end()) return;
  Communicator& communicator = found->second;
  processes_[id].unanswered[message.ticket] = {message, message.text};
  if (is_transfer(message.operation)) {
    transfer(communicator, std::move(message));
    return;
  }
  const uint64_t sequence = message.sequence;
  Posts& posts = communicator.open[sequence];
  posts[message.rank] = std::move(message);
  if (posts.size() == communicator.members.size()) finish(communicator, sequence, false);
}

bool Meeting::is_root_missing(const Communicator& communicator, const Posts& posts) const {
  const Head& head = posts.begin()->second;
  return head.operation == Operation::kBroadcast && communicator.members.count(head.root) == 0;
}

namespace {

template <typename Likeness>
Likeness likeness(const Head& head, int size) {
  return {size, head.root, head.sequence, head.count, head.type};
}

constexpr size_t kMostBroadcasts = 4096;

}  // namespace

// The broadcast of a root that runs to a group like this one.
const Message* Meeting::sibling(const Posts& posts, int size) const {
  const auto found = broadcasts_.find(likeness<Likeness>(posts.begin()->second, size));
  return found == broadcasts_.end() ? nullptr : &found->second;
}

void Meeting::finish(Communicator& communicator, uint64_t sequence, bool without_root) {
  Posts& open = communicator.open[sequence];
  const Message& first = open.begin()->second;
  for (const auto& [rank, post] : open) {
    if (!agree(first, post)) return condemn(communicator.job, "mismatch", complaints(communicator.job));
  }
  const bool root_missing = is_root_missing(communicator, open);
  const Message* like = root_missing ? sibling(open, communicator.size) : nullptr;
  if (root_missing && like == nullptr && !without_root) return;  // one may come yet
  if (root_missing && like == nullptr && first.has_bytes) {
    notes_.insert("a broadcast came from a rank that does not run, and what was there before was kept: " +
                  first.text);
  }
  Posts posts = std::move(open);
  communicator.open.erase(sequence);
  const Head head = posts.begin()->second;
  if (head.operation == Operation::kSplit) return split(communicator, posts);
  if (like != nullptr) {
    Message& given = posts[head.root];
    given = *like;
  }
  const Results results(posts, communicator.size);
  for (const auto& [rank, member] : communicator.members) {
    Message done;
    done.kind = Kind::kDone;
    done.ticket = posts.at(rank).ticket;
    results.give(rank, done);
    answer(communicator, rank, done);
  }
  if (!imagines() || head.operation != Operation::kBroadcast || root_missing) return;
  const auto root = posts.find(head.root);
  if (root == posts.end() || broadcasts_.size() >= kMostBroadcasts) return;
  broadcasts_[likeness<Likeness>(head, communicator.size)] = root->second;
  for (auto& [number, other] : communicators_) {
    std::vector<uint64_t> held;
    for (const auto& [at, waiting] : other.open) {
      const bool is_whole = waiting.size() == other.members.size();
      if (is_whole && is_root_missing(other, waiting) && sibling(waiting, other.size) != nullptr)
        held.push_back(at);
    }
    for (const uint64_t at : held) finish(other, at, false);
  }
}

// So much a network buffers: who sends it goes on.
constexpr uint64_t kBufferedBytes = uint64_t{64} << 10;

void Meeting::transfer(Communicator& communicator, Message message) {
  if (communicator.members.count(message.root) == 0) return answer_imagined(communicator, std::move(message));
  const bool sends = message.operation == Operation::kSend;
  const int from = sends ? message.rank : message.root;
  const int to = sends ? message.root : message.rank;
  const std::tuple<int, int, uint64_t> key{from, to, message.sequence};
  Transfer& transfer = communicator.transfers[key];
  (sends ? transfer.send : transfer.receive) = std::move(message);
  const auto tell_sender = [&] {
    Message done;
    done.kind = Kind::kDone;
    done.ticket = transfer.send->ticket;
    transfer.is_sent = true;
    answer(communicator, from, done);
  };
  if (transfer.send && transfer.receive) {
    const Message& sent = *transfer.send;
    const Message& received = *transfer.receive;
    if (sent.count != received.count || sent.type != received.type) {
      return condemn(communicator.job, "mismatch", complaints(communicator.job));
    }
    Message done;
    done.kind = Kind::kDone;
    done.ticket = received.ticket;
    done.has_bytes = sent.has_bytes;
    done.is_real = sent.is_real;
    done.bytes = sent.bytes;
    answer(communicator, to, done);
    if (!transfer.is_sent) tell_sender();
    communicator.transfers.erase(key);
  } else if (sends && !transfer.is_sent &&
             transfer.send->count * item_bytes(transfer.send->type) <= kBufferedBytes) {
    tell_sender();
  }
}

// A peer that does not run sends what it is sent, or what went to others.
void Meeting::answer_imagined(Communicator& communicator, Message message) {
  Message done;
  done.kind = Kind::kDone;
  done.ticket = message.ticket;
  const int rank = message.rank;
  if (message.operation == Operation::kSend) {
    communicator.sent[{rank, message.root}] = message;
    communicator.sent[{rank, -1}] = std::move(message);
  } else {
    for (const int peer : {message.root, -1}) {
      const auto found = communicator.sent.find({rank, peer});
      if (found == communicator.sent.end() || done.has_bytes) continue;
      const Message& sent = found->second;
      if (sent.count != message.count || sent.type != message.type || !sent.has_bytes) continue;
      done.has_bytes = true;
      done.is_real = sent.is_real;
      done.bytes = sent.bytes;
    }
    if (!done.has_bytes && message.has_bytes) {
      notes_.insert("a message came from a rank that does not run, and what was there before was kept: " +
                    message.text);
    }
  }
  answer(communicator, rank, done);
}

void Meeting::store(int id, const Message& message) {
  for (const Store::Answer& given : jobs_[processes_[id].job].store.call(id, message)) {
    answer(given.process, given.done);
  }
}

// ---- who waits

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

// ---- verdicts

Meeting::Activity Meeting::activity_of(const std::string& job) const {
  Activity all;
  for (const auto& [id, process] : processes_) {
    if (process.job != job || !process.live) continue;
    const Activity one = observe_(process.id);
    all.used += one.used;
    all.is_busy |= one.is_busy;
  }
  return all;
}

namespace {

constexpr double kIdleShare = 0.3;  // of one core: threads that look whether something has happened

bool is_idle(double used, Clock::duration passed) {
  return used <= kIdleShare * std::chrono::duration<double>(passed).count();
}

}  // namespace

void Meeting::tick(Clock::time_point now) {
  for (auto& [name, job] : jobs_) {
    if (verdict_) return;
    ask_idle(name, job, now);
    judge(name, job, now);
  }
}

// Asks those that say nothing, where others wait and nobody computes; those that were idle, whether they are
// still.
void Meeting::ask_idle(const std::string& name, Job& job, Clock::time_point now) {
  constexpr std::chrono::milliseconds kWhile{400};
  const bool any_waits =
      std::any_of(processes_.begin(), processes_.end(), [&, &name = name](const auto& entry) {
        return entry.second.job == name && entry.second.live && !entry.second.waits.empty();
      });
  if (!any_waits) return job.slow_at.reset();
  const Activity activity = activity_of(name);
  if (!job.slow_at || activity.is_busy) {
    job.slow_at = now;
    job.used_when_slow = activity.used;
    return;
  }
  if (now - *job.slow_at < kWhile) return;
  const bool idle = is_idle(activity.used - job.used_when_slow, now - *job.slow_at);
  job.slow_at.reset();
  if (!idle) return;
  Message ask;
  ask.kind = Kind::kAsk;
  for (const auto& [id, process] : processes_) {
    if (process.job == name && process.counts && process.live && process.waits.empty()) send_(id, ask);
  }
}

void Meeting::told(int id, const Message& message) {
  Process& process = processes_[id];
  if (!process.waits.empty()) return;
  const bool changed = process.idle && process.idle_at != message.text;
  if (changed || !message.flag) jobs_[process.job].quiet_at.reset();
  process.idle = message.flag;
  process.idle_at = message.text;
  look(process.job);
}

void Meeting::judge(const std::string& name, Job& job, Clock::time_point now) {
  constexpr std::chrono::milliseconds kWhile{1500};
  // Where a rank has ended, its launcher may be about to end the others; and idle ones are asked several
  // times.
  constexpr std::chrono::seconds kLongWhile{6};
  if (!is_quiet(name, false)) return;
  const Activity activity = activity_of(name);
  if (!job.quiet_at || activity.is_busy) {
    job.quiet_at = now;
    job.used = activity.used;
    return;
  }
  const bool is_plain = std::none_of(processes_.begin(), processes_.end(), [&](const auto& entry) {
    return entry.second.job == name && entry.second.counts && (!entry.second.live || entry.second.idle);
  });
  const auto passed = now - *job.quiet_at;
  if (passed < (is_plain ? Clock::duration(kWhile) : Clock::duration(kLongWhile))) return;
  const bool idle = is_idle(activity.used - job.used, passed);
  job.quiet_at.reset();
  if (idle) condemn(name, "deadlock", complaints(name));
}

void Meeting::condemn(const std::string& job, const char* kind, std::vector<std::string> lines) {
  if (verdict_) return;
  verdict_ = Verdict{kind, std::move(lines)};
  Message fatal;
  fatal.kind = Kind::kFatal;
  for (const std::string& line : verdict_->lines) fatal.text += line + "\n";
  for (const auto& [id, process] : processes_) {
    if (process.job == job && process.live) send_(id, fatal);
  }
}

std::string ranks_text(const std::set<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (auto at = ranks.begin(); at != ranks.end();) {
    const int first = *at;
    int last = first;
    while (++at != ranks.end() && *at == last + 1) ++last;
    if (text.back() != ' ') text += ",";
    text += std::to_string(first);
    if (last > first) text += (last == first + 1 ? "," : "-") + std::to_string(last);
  }
  return text;
}

// Of each rank the first that it waits for, ranks that wait for the same in one line.
std::vector<std::string> Meeting::complaints(const std::string& job) const {
  std::map<std::string, std::set<int>> by_text;
  for (const auto& [id, process] : processes_) {
    if (process.job != job || !process.counts) continue;
    std::string text = "ended";
    if (process.live && !process.unanswered.empty()) {
      const Waiting& waiting = process.unanswered.begin()->second;
      text = "wait in " + describe(waiting.head);
      if (is_transfer(waiting.head.operation)) {
        const auto& members = communicators_.at(waiting.head.communicator).members;
        const auto peer = members.find(waiting.head.root);
        const int named = peer == members.end() ? waiting.head.root : processes_.at(peer->second).world_rank;
        text += (waiting.head.operation == Operation::kSend ? " to rank " : " from rank ") +
                std::to_string(named);
      }
      if (!waiting.line.empty()) text += " at " + waiting.line;
    } else if (process.live) {
      text = process.idle            ? "wait for other ranks at " + process.idle_at
             : process.waits.empty() ? "compute"
                                     : "wait";
    }
    by_text[text].insert(process.world_rank);
  }
  std::map<int, std::string> order;  // by the first rank
  for (const auto& [text, ranks] : by_text) order[*ranks.begin()] = text;
  std::vector<std::string> lines;
  for (const auto& [first, text] : order) {
    const std::set<int>& ranks = by_text[text];
    std::string verb = text;
    if (ranks.size() == 1 && verb.rfind("wait", 0) == 0) verb.insert(4, "s");
    if (ranks.size() == 1 && verb == "compute") verb += "s";
    lines.push_back(ranks_text(ranks) + " " +
                    (verb == "ended" ? (ranks.size() == 1 ? "has ended" : "have ended") : verb));
  }
  return lines;
}

}  // namespace spillway::nccl
