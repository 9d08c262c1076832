// The meeting's communicators: how they come to be, by their id or from another.
#include "sim/nccl/meeting.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace spillway::nccl {

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

}  // namespace spillway::nccl
