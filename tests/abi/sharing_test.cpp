// Device memory shared by two processes through the C ABI: one makes and exports a block, the other maps it,
// reads what is in it and writes back.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/filled.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr size_t kShown = 3 * kMiB;

struct Message {
  uint64_t offset;
  uint64_t bytes;
};

void send_descriptor(int socket, int descriptor, Message message) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  iovec data{&message, sizeof message};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  SPW_CHECK(sendmsg(socket, &header, 0) == static_cast<ssize_t>(sizeof message));
}

int receive_descriptor(int socket, Message* message) {
  int descriptor = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  iovec data{message, sizeof *message};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  SPW_CHECK(recvmsg(socket, &header, 0) == static_cast<ssize_t>(sizeof *message));
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof descriptor);
  return descriptor;
}

// The second process: it has never seen the first one's driver.
[[noreturn]] void look_from_outside(int socket) {
  Message message{};
  const int descriptor = receive_descriptor(socket, &message);
  const auto driver = start_device();
  void* extent = nullptr;
  SPW_CHECK(spw_import_fd(descriptor, message.bytes, 0, &extent) == SPW_OK);
  close(descriptor);
  void* const seen = static_cast<char*>(extent) + message.offset;
  SPW_CHECK(is_filled(*driver, seen, 0x5a, kShown));
  fill(*driver, seen, 0xa5, kShown);
  SPW_CHECK(stats_of(0).reserved_bytes.all.current == 0);
  SPW_CHECK(spw_free(extent) == SPW_ERROR_INVALID_POINTER);
  SPW_CHECK(spw_import_close(extent) == SPW_OK && spw_import_close(nullptr) == SPW_OK);
  SPW_CHECK(spw_import_close(extent) == SPW_ERROR_INVALID_POINTER);
  SPW_CHECK(spw_validate(0) == SPW_OK);
  std::_Exit(0);
}

TEST(Sharing, TwoProcessesSeeOneBlock) {
  in_child({}, [] {
    int sockets[2] = {};
    SPW_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    const pid_t other = fork();
    SPW_CHECK(other >= 0);
    if (other == 0) look_from_outside(sockets[1]);
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc_shareable(40 * kMiB, 0, nullptr, &block) == SPW_OK);
    void* const shown = static_cast<char*>(block) + kMiB;
    fill(*driver, shown, 0x5a, kShown);
    int descriptor = -1;
    Message message{};
    SPW_CHECK(spw_export_fd(shown, &descriptor, &message.offset, &message.bytes) == SPW_OK);
    SPW_CHECK(message.offset == kMiB && message.bytes == 40 * kMiB);
    send_descriptor(sockets[0], descriptor, message);
    close(descriptor);
    int status = 0;
    SPW_CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    SPW_CHECK(is_filled(*driver, shown, 0xa5, kShown));
    SPW_CHECK(stats_of(0).reserved_bytes.all.current == static_cast<int64_t>(40 * kMiB));
    SPW_CHECK(spw_validate(0) == SPW_OK);
    SPW_CHECK(spw_free(block) == SPW_OK && spw_trim(0) == SPW_OK);
    SPW_CHECK(stats_of(0).reserved_bytes.all.current == 0);
  });
}

TEST(Sharing, MistakesAreErrors) {
  in_child({}, [] {
    const auto driver = start_device();
    void* plain = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &plain) == SPW_OK);
    int descriptor = -1;
    Message message{};
    SPW_CHECK(spw_export_fd(plain, &descriptor, &message.offset, &message.bytes) ==
              SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(last_error_has("spw_alloc_shareable") && descriptor == -1);
    SPW_CHECK(spw_export_fd(plain, nullptr, &message.offset, &message.bytes) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_export_fd(nullptr, &descriptor, &message.offset, &message.bytes) ==
              SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(spw_alloc_shareable(kMiB, 0, nullptr, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_import_fd(-1, 32 * kMiB, 0, &plain) == SPW_ERROR_INVALID_ARGUMENT && plain == nullptr);
    SPW_CHECK(spw_import_fd(0, 32 * kMiB, 0, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_import_close(&descriptor) == SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(spw_enable_peer(0, 0) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_validate(0) == SPW_OK);
  });
}

}  // namespace
}  // namespace spillway::test
