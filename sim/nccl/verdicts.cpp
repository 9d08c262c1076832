// When a job cannot go on, and what is said of it.
#include "sim/nccl/meeting.h"

#include <algorithm>
#include <utility>

namespace spillway::nccl {

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

// Lists of each rank the first that it waits for, ranks that wait for the same in one line.
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
