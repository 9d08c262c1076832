// Ordinary blocks named to another process by handles: which bytes it sees, how long, and what is refused.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/support/filled.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

struct Shown {
  spw_ipc_handle handle;
  uint64_t offset;
  uint64_t bytes;
};

template <typename T>
void send(int socket, const T& value) {
  SPW_CHECK(write(socket, &value, sizeof value) == static_cast<ssize_t>(sizeof value));
}
template <typename T>
T receive(int socket) {
  T value{};
  SPW_CHECK(read(socket, &value, sizeof value) == static_cast<ssize_t>(sizeof value));
  return value;
}

using Body = std::function<void(const Driver& driver, int socket)>;

// One process shows, another looks; each has a driver of its own.
void two_processes(const Body& show, const Body& look, const Environment& environment = {}) {
  in_child(environment, [&] {
    int sockets[2] = {};
    SPW_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    const pid_t other = fork();
    SPW_CHECK(other >= 0);
    close(sockets[other == 0 ? 0 : 1]);
    const auto driver = start_device();
    if (other == 0) {
      look(*driver, sockets[1]);
      SPW_CHECK(spw_validate(0) == SPW_OK);
      std::_Exit(0);
    }
    show(*driver, sockets[0]);
    int status = 0;
    SPW_CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    SPW_CHECK(spw_validate(0) == SPW_OK);
  });
}

void* allocate(size_t bytes) {
  void* block = nullptr;
  SPW_CHECK(spw_alloc(bytes, 0, nullptr, &block) == SPW_OK);
  return block;
}

void* inside(void* pages, uint64_t offset) {
  return static_cast<char*>(pages) + offset;
}

Shown shown(void* block, size_t bytes) {
  Shown made{{}, 0, bytes};
  SPW_CHECK(spw_ipc_get_handle(block, &made.handle, &made.offset) == SPW_OK);
  return made;
}

void* open_handle(const Shown& block) {
  void* pages = nullptr;
  SPW_CHECK(spw_ipc_open_handle(&block.handle, 0, &pages) == SPW_OK);
  return pages;
}

// Shows a filled block, and waits until the other process has filled it anew.
void show_and_compare(const Driver& driver, int socket, void* block, size_t bytes) {
  fill(driver, block, 0x5a, bytes);
  send(socket, shown(block, bytes));
  (void)receive<char>(socket);
  SPW_CHECK(is_filled(driver, block, 0xa5, bytes));
}

void look_and_fill(const Driver& driver, int socket) {
  const auto block = receive<Shown>(socket);
  void* pages = open_handle(block);
  SPW_CHECK(is_filled(driver, inside(pages, block.offset), 0x5a, block.bytes));
  fill(driver, inside(pages, block.offset), 0xa5, block.bytes);
  SPW_CHECK(stats_of(0).reserved_bytes.all.current == 0);
  SPW_CHECK(spw_ipc_close_handle(pages) == SPW_OK);
  SPW_CHECK(stats_of(0).live_mappings == 0);
  send(socket, 'd');
}

TEST(Ipc, ABlockThatSharesItsEdges) {
  two_processes(
      [](const Driver& driver, int socket) {
        void* before = allocate(kMiB + 512);
        void* block = allocate(5 * kMiB + 700);
        void* after = allocate(kMiB);
        for (void* neighbour : {before, after}) fill(driver, neighbour, 0x11, kMiB);
        show_and_compare(driver, socket, block, 5 * kMiB + 700);
        for (void* neighbour : {before, after}) SPW_CHECK(is_filled(driver, neighbour, 0x11, kMiB));
      },
      look_and_fill);
}

TEST(Ipc, ABlockOfScatteredPages) {
  two_processes(
      [](const Driver& driver, int socket) {
        std::vector<void*> blocks;
        for (int i = 0; i < 8; ++i) blocks.push_back(allocate(2 * kMiB));
        for (size_t i = 0; i < blocks.size(); i += 2) SPW_CHECK(spw_free(blocks[i]) == SPW_OK);
        void* block = allocate(8 * kMiB);
        SPW_CHECK(stats_of(0).live_mappings == 12);  // eight at home, four in a view
        show_and_compare(driver, socket, block, 8 * kMiB);
      },
      look_and_fill, {{"SPILLWAY_CONF", "limit:16MiB"}});
}

TEST(Ipc, AGuardedBlock) {
  two_processes(
      [](const Driver& driver, int socket) {
        show_and_compare(driver, socket, allocate(3 * kMiB), 3 * kMiB);
        uint64_t findings = 1;
        SPW_CHECK(spw_guard_check(0, &findings) == SPW_OK && findings == 0);
      },
      look_and_fill, {{"SPILLWAY_CONF", "debug:guard"}});
}

TEST(Ipc, PagesThatAreOpenAreMappedOnce) {
  two_processes(
      [](const Driver& driver, int socket) {
        void* first = allocate(1000);
        void* second = allocate(1000);
        fill(driver, first, 1, 1000);
        fill(driver, second, 2, 1000);
        const Shown one = shown(first, 1000);
        const Shown same = shown(first, 1000);
        SPW_CHECK(std::memcmp(&one, &same, sizeof one) == 0);
        send(socket, one);
        send(socket, shown(second, 1000));
        (void)receive<char>(socket);
      },
      [](const Driver& driver, int socket) {
        const auto first = receive<Shown>(socket);
        const auto second = receive<Shown>(socket);
        void* pages = open_handle(first);
        SPW_CHECK(open_handle(first) == pages && open_handle(second) == pages);
        SPW_CHECK(stats_of(0).live_mappings == 1);
        SPW_CHECK(spw_ipc_close_handle(pages) == SPW_OK && spw_ipc_close_handle(pages) == SPW_OK);
        SPW_CHECK(is_filled(driver, inside(pages, first.offset), 1, 1000));
        SPW_CHECK(is_filled(driver, inside(pages, second.offset), 2, 1000));
        SPW_CHECK(spw_ipc_close_handle(pages) == SPW_OK);
        SPW_CHECK(stats_of(0).live_mappings == 0);
        SPW_CHECK(spw_ipc_close_handle(pages) == SPW_ERROR_INVALID_POINTER);
        send(socket, 'd');
      });
}

TEST(Ipc, AHandleIsOfOneBlockWhateverComesAfterIt) {
  two_processes(
      [](const Driver& driver, int socket) {
        void* block = allocate(4 * kMiB);
        const Shown first = shown(block, 4 * kMiB);
        send(socket, first);
        (void)receive<char>(socket);
        SPW_CHECK(spw_free(block) == SPW_OK);
        send(socket, 'f');
        (void)receive<char>(socket);
        SPW_CHECK(spw_trim(0) == SPW_OK);
        SPW_CHECK(allocate(4 * kMiB) == block);
        fill(driver, block, 7, 4 * kMiB);
        const Shown second = shown(block, 4 * kMiB);
        SPW_CHECK(std::memcmp(&first.handle, &second.handle, sizeof first.handle) != 0);
        send(socket, second);
        (void)receive<char>(socket);
      },
      [](const Driver& driver, int socket) {
        const auto first = receive<Shown>(socket);
        void* pages = open_handle(first);
        send(socket, 'o');
        (void)receive<char>(socket);
        SPW_CHECK(open_handle(first) == pages);  // what is open stays so
        SPW_CHECK(spw_ipc_close_handle(pages) == SPW_OK && spw_ipc_close_handle(pages) == SPW_OK);
        SPW_CHECK(spw_ipc_open_handle(&first.handle, 0, &pages) == SPW_ERROR_INVALID_POINTER &&
                  pages == nullptr);
        SPW_CHECK(last_error_has("no block begins there, or it was freed"));
        send(socket, 'c');
        const auto second = receive<Shown>(socket);
        SPW_CHECK(spw_ipc_open_handle(&first.handle, 0, &pages) == SPW_ERROR_INVALID_STATE);
        SPW_CHECK(last_error_has("was freed, and another is there"));
        pages = open_handle(second);
        SPW_CHECK(is_filled(driver, inside(pages, second.offset), 7, 4 * kMiB));
        SPW_CHECK(spw_ipc_close_handle(pages) == SPW_OK);
        send(socket, 'd');
      });
}

TEST(Ipc, WhatIsClosedWhileAPoolIsOpenIsUnmappedLater) {
  two_processes(
      [](const Driver&, int socket) {
        send(socket, shown(allocate(4 * kMiB), 4 * kMiB));
        send(socket, shown(allocate(6 * kMiB), 6 * kMiB));
        (void)receive<char>(socket);
      },
      [](const Driver&, int socket) {
        const auto first = receive<Shown>(socket);
        const auto second = receive<Shown>(socket);
        void* pages = open_handle(first);
        SPW_CHECK(spw_pool_begin(0, {1, 1}, nullptr, nullptr) == SPW_OK);
        SPW_CHECK(spw_ipc_close_handle(pages) == SPW_OK);
        SPW_CHECK(stats_of(0).live_mappings == 2);
        SPW_CHECK(open_handle(first) == pages && spw_ipc_close_handle(pages) == SPW_OK);
        SPW_CHECK(spw_pool_end(0, {1, 1}) == SPW_OK && spw_pool_release(0, {1, 1}) == SPW_OK);
        pages = open_handle(second);
        SPW_CHECK(stats_of(0).live_mappings == 3);
        SPW_CHECK(spw_ipc_close_handle(pages) == SPW_OK);
        send(socket, 'd');
      });
}

TEST(Ipc, Mistakes) {
  in_child({}, [] {
    const auto driver = start_device();
    void* block = allocate(kMiB);
    void* extent = nullptr;
    SPW_CHECK(spw_alloc_shareable(kMiB, 0, nullptr, &extent) == SPW_OK);
    Shown made{};
    SPW_CHECK(spw_ipc_get_handle(block, nullptr, &made.offset) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_ipc_get_handle(block, &made.handle, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    for (void* wrong : {static_cast<void*>(nullptr), static_cast<void*>(&made),
                        static_cast<void*>(static_cast<char*>(block) + 512), extent}) {
      SPW_CHECK(spw_ipc_get_handle(wrong, &made.handle, &made.offset) == SPW_ERROR_INVALID_POINTER);
    }
    void* pages = &made;
    SPW_CHECK(spw_ipc_open_handle(&made.handle, 0, &pages) == SPW_ERROR_INVALID_ARGUMENT && pages == nullptr);
    SPW_CHECK(spw_ipc_open_handle(nullptr, 0, &pages) == SPW_ERROR_INVALID_ARGUMENT);
    made = shown(block, kMiB);
    SPW_CHECK(spw_ipc_open_handle(&made.handle, 0, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_ipc_open_handle(&made.handle, 0, &pages) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(last_error_has("of this process itself"));
    SPW_CHECK(spw_ipc_close_handle(nullptr) == SPW_OK);
    SPW_CHECK(spw_ipc_close_handle(block) == SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(spw_free(block) == SPW_OK);
    SPW_CHECK(spw_ipc_get_handle(block, &made.handle, &made.offset) == SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(spw_free(extent) == SPW_OK && spw_validate(0) == SPW_OK);
  });
}

}  // namespace
}  // namespace spillway::test
