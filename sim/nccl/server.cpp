#include "sim/nccl/server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "sim/nccl/meeting.h"
#include "sim/nccl/server_thread.h"
#include "sim/nccl/socket_name.h"

namespace spillway::nccl {
namespace {

constexpr std::chrono::milliseconds kTick{100};

// A line of /proc about a process or a thread: its state, and what it used of the CPUs, in seconds. False: it
// is gone.
bool read_stat(const std::string& path, char* state, double* used) {
  FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return false;
  char text[1024];
  text[std::fread(text, 1, sizeof text - 1, file)] = '\0';
  std::fclose(file);
  const char* after_name = std::strrchr(text, ')');
  unsigned long user = 0;
  unsigned long system = 0;
  constexpr const char* kFields = ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu";
  if (after_name == nullptr || std::sscanf(after_name, kFields, state, &user, &system) != 3) return false;
  *used = static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return true;
}

Meeting::Activity observe(pid_t process) {
  const std::string folder = "/proc/" + std::to_string(process);
  Meeting::Activity activity;
  char state = ' ';
  if (!read_stat(folder + "/stat", &state, &activity.used)) return activity;
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator(folder + "/task", error)) {
    double used = 0;
    if (read_stat((thread.path() / "stat").string(), &state, &used))
      activity.is_busy |= state == 'R' || state == 'D';
  }
  return activity;
}

}  // namespace

struct Server::Loop {
  struct Peer {
    int socket = -1;
    Unpacker arrived;
    std::deque<std::vector<char>> to_send;
    size_t sent = 0;  // of the first
  };

  int listener;
  int stop;
  std::map<int, Peer> peers;  // by the number that the meeting knows
  int next = 1;
  Meeting meeting;

  Loop(int listening, int stopping, int ranks)
      : listener(listening),
        stop(stopping),
        meeting(
            ranks, [this](int to, const Message& message) { send(to, message); }, observe) {}

  void send(int to, const Message& message) {
    const auto found = peers.find(to);
    if (found == peers.end()) return;
    found->second.to_send.push_back(pack(message));
  }

  void add(int socket) {
    ::fcntl(socket, F_SETFL, O_NONBLOCK);
    peers[next].socket = socket;
    meeting.connect(next++);
  }

  // False when the peer is gone.
  static bool write_to(Peer& peer) {
    while (!peer.to_send.empty()) {
      const std::vector<char>& first = peer.to_send.front();
      const ssize_t wrote =
          ::send(peer.socket, first.data() + peer.sent, first.size() - peer.sent, MSG_NOSIGNAL);
      if (wrote < 0) return errno == EAGAIN || errno == EINTR;
      peer.sent += static_cast<size_t>(wrote);
      if (peer.sent < first.size()) return true;
      peer.to_send.pop_front();
      peer.sent = 0;
    }
    return true;
  }

  bool read_from(int id, Peer& peer) {
    static thread_local std::vector<char> buffer(size_t{1} << 20);
    const ssize_t got = ::recv(peer.socket, buffer.data(), buffer.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    peer.arrived.add(buffer.data(), static_cast<size_t>(got));
    while (std::optional<Message> message = peer.arrived.next()) meeting.receive(id, std::move(*message));
    return true;
  }

  void drop(int id) {
    ::close(peers.at(id).socket);
    peers.erase(id);
    meeting.disconnect(id);
  }

  void serve(const std::vector<pollfd>& polled, const std::vector<int>& ids) {
    std::vector<int> gone;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool readable = (polled[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
      if (readable && !read_from(ids[i], peers.at(ids[i]))) gone.push_back(ids[i]);
    }
    for (const int id : std::exchange(gone, {})) drop(id);
    for (auto& [id, peer] : peers) {
      if (!write_to(peer)) gone.push_back(id);
    }
    for (const int id : gone) drop(id);
  }

  void run() {
    for (auto ticked = Clock::now();;) {
      std::vector<pollfd> polled;
      std::vector<int> ids;
      for (const auto& [id, peer] : peers) {
        const auto wants = static_cast<short>(POLLIN | (peer.to_send.empty() ? 0 : POLLOUT));
        polled.push_back({peer.socket, wants, 0});
        ids.push_back(id);
      }
      polled.push_back({listener, POLLIN, 0});
      polled.push_back({stop, POLLIN, 0});
      ::poll(polled.data(), polled.size(), static_cast<int>(kTick.count()));
      if (polled.back().revents != 0) return;
      serve(polled, ids);
      if ((polled[ids.size()].revents & POLLIN) != 0) {
        const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (socket >= 0) add(socket);
      }
      const auto now = Clock::now();
      if (now - ticked < kTick) continue;
      ticked = now;
      meeting.tick(now);
    }
  }
};

Server::Server(int listener, int ranks)
    : stop_(::eventfd(0, EFD_CLOEXEC)),
      listener_(listener),
      loop_(std::make_unique<Loop>(listener, stop_, ranks)) {
  thread_ = std::thread([this] { loop_->run(); });
}

Server::~Server() {
  stop();
  for (const auto& [id, peer] : loop_->peers) ::close(peer.socket);
  ::close(listener_);
  ::close(stop_);
}

void Server::stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!::write(stop_, &one, sizeof one);
  thread_.join();
}

std::unique_ptr<Server> Server::listen(const std::string& name, int ranks) {
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return nullptr;
  const SocketName address(name);
  if (::bind(listener, address.get(), address.bytes) != 0 || ::listen(listener, 1024) != 0) {
    ::close(listener);
    return nullptr;
  }
  return std::make_unique<Server>(listener, ranks);
}

std::string Server::end() {
  stop();
  nlohmann::json result = {
      {"kind", ""}, {"lines", nlohmann::json::array()}, {"notes", loop_->meeting.notes()}};
  if (const std::optional<Verdict>& verdict = loop_->meeting.verdict()) {
    result["kind"] = verdict->kind;
    result["lines"] = verdict->lines;
  }
  return result.dump();
}

}  // namespace spillway::nccl

using spillway::nccl::Server;

extern "C" {

void* spwMeetingStart(const char* name, int ranks) {
  return Server::listen(name, ranks).release();
}

const char* spwMeetingEnd(void* meeting) {
  static std::string answer;
  std::unique_ptr<Server> server(static_cast<Server*>(meeting));
  answer = server->end();
  return answer.c_str();
}

}  // extern "C"
