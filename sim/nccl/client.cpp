#include "sim/nccl/client.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "sim/nccl/driver.h"
#include "sim/nccl/server_thread.h"
#include "sim/nccl/socket_name.h"

namespace spillway::nccl {
namespace {

using Where = void (*)(char* text, size_t bytes, int* world_rank);
using End = void (*)(const char* text);
using IsReal = int (*)(uint64_t ptr, uint64_t bytes);
using SetReal = void (*)(uint64_t ptr, uint64_t bytes, int real);
using Now = int (*)(char* text, size_t bytes);
std::atomic<Where> where{nullptr};
std::atomic<End> end{nullptr};
std::atomic<Now> now{nullptr};
std::atomic<IsReal> real_asked{nullptr};
std::atomic<SetReal> real_told{nullptr};

const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

int number_in(const char* name, int otherwise) {
  const char* text = variable(name);
  char* rest = nullptr;
  const long number = std::strtol(text, &rest, 10);
  return *text == '\0' || *rest != '\0' ? otherwise : static_cast<int>(number);
}

// The ranks of one job agree on it. Without a launcher's variables they are one process's children.
std::string job() {
  if (*variable("WORLD_SIZE") == '\0' || *variable("MASTER_PORT") == '\0')
    return "of " + std::to_string(::getppid());
  return std::string(variable("MASTER_ADDR")) + ":" + variable("MASTER_PORT") + " " +
         variable("TORCHELASTIC_RUN_ID") + " " + variable("TORCHELASTIC_RESTART_COUNT");
}

int connect_to(const std::string& name) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  const SocketName address(name);
  if (::connect(socket, address.get(), address.bytes) == 0) return socket;
  ::close(socket);
  return -1;
}

int connect_to_meeting() {
  if (const char* named = variable("SPILLWAY_DRYRUN_MEETING"); *named != '\0') return connect_to(named);
  // A meeting of one, for as long as the process lives.
  const std::string own = "spillway-nccl-" + std::to_string(::getpid());
  static Server* server = Server::listen(own, 1).release();
  return server == nullptr ? -1 : connect_to(own);
}

uint64_t this_thread() {
  static std::atomic<uint64_t> threads{0};
  thread_local const uint64_t kNumber = ++threads;
  return kNumber;
}

}  // namespace

Place place() {
  Place place;
  if (const Where ask = where.load()) {
    char text[1024] = "";
    ask(text, sizeof text, &place.world_rank);
    place.line = text;
  }
  if (place.world_rank < 0) place.world_rank = number_in("RANK", -1);
  return place;
}

bool is_real(const void* ptr, uint64_t bytes) {
  const IsReal ask = real_asked.load();
  return ask == nullptr || ask(reinterpret_cast<uint64_t>(ptr), bytes) != 0;
}

void set_real(const void* ptr, uint64_t bytes, bool real) {
  if (const SetReal tell = real_told.load(); tell != nullptr && bytes > 0)
    tell(reinterpret_cast<uint64_t>(ptr), bytes, real ? 1 : 0);
}

Client* Client::get() {
  // Never destroyed: its thread and the program's last calls may outlive static objects. A child of fork has
  // none.
  static Client* client = [] {
    const int socket = connect_to_meeting();
    return socket < 0 ? nullptr : new Client(socket);
  }();
  static const pid_t kOwner = ::getpid();
  return kOwner == ::getpid() ? client : nullptr;
}

Client::Client(int socket) : socket_(socket) {
  say_hello();
  std::thread([this] { serve(); }).detach();
}

void Client::say_hello() {
  Message hello;
  hello.kind = Kind::kHello;
  hello.text = job();
  hello.rank = hello.world_rank = number_in("RANK", -1);
  hello.size = number_in("WORLD_SIZE", 0);
  hello.count = static_cast<uint64_t>(::getpid());
  send(hello);
}

void Client::send(const Message& message) {
  const std::vector<char> packed = pack(message);
  const std::lock_guard lock(sending_);
  for (size_t sent = 0; sent < packed.size();) {
    const ssize_t wrote = ::send(socket_, packed.data() + sent, packed.size() - sent, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return;  // the meeting is over, and so is the program soon
    sent += static_cast<size_t>(wrote);
  }
}

void Client::post(Message message, std::shared_ptr<Receiver> receiver) {
  message.ticket = next_++;
  {
    const std::lock_guard lock(mutex_);
    receivers_[message.ticket] = std::move(receiver);
  }
  send(message);
}

bool Client::wait_for_answer(bool may_go, uint64_t seen) {
  if (is_broken()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const uint64_t thread = this_thread();
  Message message;
  message.kind = Kind::kWait;
  message.ticket = thread;
  message.flag = may_go;
  message.count = seen;
  std::unique_lock lock(mutex_);
  wakes_[thread] = Wake::kWaits;
  lock.unlock();
  send(message);
  lock.lock();
  woken_.wait(lock, [&] { return wakes_[thread] != Wake::kWaits || broken_; });
  const Wake how = wakes_[thread];
  wakes_.erase(thread);
  lock.unlock();
  if (how == Wake::kStirred) {
    message.kind = Kind::kLeave;
    send(message);
  }
  return how != Wake::kLetGo && !is_broken();
}

void Client::stir() {
  const std::lock_guard lock(mutex_);
  for (auto& [thread, wake] : wakes_) {
    if (wake == Wake::kWaits) wake = Wake::kStirred;
  }
  woken_.notify_all();
}

void Client::serve() {
  Unpacker arrived;
  std::vector<char> buffer(size_t{1} << 18);
  for (;;) {
    const ssize_t got = ::recv(socket_, buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    arrived.add(buffer.data(), static_cast<size_t>(got));
    while (std::optional<Message> message = arrived.next()) receive(std::move(*message));
  }
  const std::lock_guard lock(mutex_);
  broken_ = true;
  woken_.notify_all();
}

void Client::receive(Message message) {
  if (message.kind == Kind::kDone) {
    std::shared_ptr<Receiver> receiver;
    {
      const std::lock_guard lock(mutex_);
      receiver = std::move(receivers_[message.ticket]);
      receivers_.erase(message.ticket);
    }
    if (receiver != nullptr) receiver->receive(std::move(message));
    driver().progress();
    answers_.fetch_add(1, std::memory_order_release);
  } else if (message.kind == Kind::kWake) {
    const std::lock_guard lock(mutex_);
    const auto waiting = wakes_.find(message.ticket);  // or gone by itself
    if (waiting == wakes_.end()) return;
    waiting->second = message.flag ? Wake::kLetGo : Wake::kAnswer;
    woken_.notify_all();
  } else if (message.kind == Kind::kAsk) {
    Message told;
    told.kind = Kind::kTold;
    char text[1024] = "";
    const Now ask = now.load();
    told.flag = ask != nullptr && ask(text, sizeof text) != 0;
    told.text = text;
    send(told);
  } else if (message.kind == Kind::kFatal) {
    // Whatever holds the program up may hold this up too.
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::seconds(5));
      ::_exit(1);
    }).detach();
    if (const End tell = end.load()) tell(message.text.c_str());
    ::_exit(1);
  }
}

}  // namespace spillway::nccl

extern "C" {

void spwNcclSetProgram(void (*where)(char* text, size_t bytes, int* world_rank),
                       int (*now)(char* text, size_t bytes), void (*end)(const char* text)) {
  spillway::nccl::where = where;
  spillway::nccl::now = now;
  spillway::nccl::end = end;
}

void spwNcclSetReality(int (*is_real)(uint64_t ptr, uint64_t bytes),
                       void (*set_real)(uint64_t ptr, uint64_t bytes, int real)) {
  spillway::nccl::real_asked = is_real;
  spillway::nccl::real_told = set_real;
}

int spwNcclStore(int call, const char* key, const void* value, size_t* bytes, int64_t* number,
                 const void** answer) {
  using namespace spillway::nccl;
  struct Answer : Receiver {
    Message message;
    std::atomic<bool> came{false};
    void receive(Message given) override {
      message = std::move(given);
      came = true;
    }
  };
  static thread_local std::shared_ptr<Answer> last;
  Client* client = Client::get();
  if (client == nullptr) return 0;
  Message message;
  message.kind = Kind::kStore;
  message.store = static_cast<StoreCall>(call);
  message.text = key;
  message.count = static_cast<uint64_t>(*number);
  const char* given = static_cast<const char*>(value);
  message.bytes.assign(given, given + *bytes);
  last = std::make_shared<Answer>();
  client->post(std::move(message), last);
  client->wait(false, [&] { return last->came || client->is_broken(); });
  if (!last->came) return 0;
  *bytes = last->message.bytes.size();
  *answer = last->message.bytes.data();
  *number = last->message.flag ? 1 : static_cast<int64_t>(last->message.count);
  return 1;
}

void spwNcclConnect() {
  spillway::nccl::Client::get();
}

}  // extern "C"
