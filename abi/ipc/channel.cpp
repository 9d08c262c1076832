#include "abi/ipc/channel.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace spillway {
namespace {

constexpr time_t kPatienceSeconds = 30;

struct Address {
  sockaddr_un at{};
  socklen_t bytes = 0;

  explicit Address(const std::string& name) {
    at.sun_family = AF_UNIX;
    // The zero before the name makes it abstract.
    std::memcpy(at.sun_path + 1, name.data(), name.size());
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&at); }
};

Status system_error(const char* call) {
  return Status::io(std::string(call) + ": " + std::strerror(errno));
}

Descriptor make_socket() {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

}  // namespace

Descriptor::~Descriptor() {
  if (file_ >= 0) close(file_);
}

Result<Descriptor> listen_at(const std::string& name) {
  Descriptor listener = make_socket();
  const Address address(name);
  if (!listener) return system_error("socket");
  if (bind(listener.get(), address.get(), address.bytes) != 0) return system_error("bind");
  if (listen(listener.get(), SOMAXCONN) != 0) return system_error("listen");
  return listener;
}

Descriptor accept_caller(const Descriptor& listener) {
  Descriptor caller(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ucred who{};
  socklen_t bytes = sizeof who;
  if (!caller || getsockopt(caller.get(), SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) return {};
  return who.uid == geteuid() || who.uid == 0 ? std::move(caller) : Descriptor();
}

Result<Descriptor> connect_to(const std::string& name) {
  Descriptor channel = make_socket();
  const Address address(name);
  if (!channel) return system_error("socket");
  const timeval patience{kPatienceSeconds, 0};
  setsockopt(channel.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(channel.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (connect(channel.get(), address.get(), address.bytes) != 0) return system_error("connect");
  return channel;
}

bool send_message(const Descriptor& to, const void* data, size_t bytes,
                  const std::vector<Descriptor>& files) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)] = {};
  if (!files.empty()) {
    const size_t payload = sizeof(int) * files.size();
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(payload);
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(payload);
    for (size_t i = 0; i < files.size(); ++i) {
      const int file = files[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof file, &file, sizeof file);
    }
  }
  return sendmsg(to.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

Status receive_message(const Descriptor& from, void* data, size_t bytes, std::vector<Descriptor>& files) {
  iovec part{data, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(from.get(), &message, MSG_CMSG_CLOEXEC);
  for (cmsghdr* rights = CMSG_FIRSTHDR(&message); got > 0 && rights != nullptr;
       rights = CMSG_NXTHDR(&message, rights)) {
    if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(rights) + i * sizeof file, sizeof file);
      files.emplace_back(file);
    }
  }
  if (got == 0) return Status::io("it has ended");
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::io("it does not answer");
  if (got < 0) return system_error("recvmsg");
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Status::io("this process has no descriptors left to receive its pages with (raise ulimit -n)");
  }
  return static_cast<size_t>(got) == bytes ? Status() : Status::io("it answers in another form");
}

}  // namespace spillway
