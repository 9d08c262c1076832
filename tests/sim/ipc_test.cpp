// Events and memory between two processes, each with a simulated driver of its own.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "tests/support/sim_device.h"

namespace spillway::sim_test {
namespace {

// Ends the other process where something is not as it should be.
#define IN_OTHER(condition)                                                \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                       \
    }                                                                      \
  } while (0)

template <typename T>
void send(int socket, const T& value) {
  if (write(socket, &value, sizeof value) != static_cast<ssize_t>(sizeof value)) std::abort();
}
template <typename T>
T receive(int socket) {
  T value{};
  if (read(socket, &value, sizeof value) != static_cast<ssize_t>(sizeof value)) std::abort();
  return value;
}

class IpcTest : public DeviceTest {
 protected:
  void SetUp() override {}  // the other process begins first
  void TearDown() override {
    if (other_ > 0) finish();
  }

  // Runs `body` in another process, on a device where nothing runs that nobody waits for; then begins this
  // one's.
  void begin(const std::function<void(int socket)>& body) {
    int sockets[2] = {};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    other_ = fork();
    ASSERT_GE(other_, 0);
    if (other_ == 0) {
      close(sockets[0]);
      start("completion:run-ahead");
      body(sockets[1]);
      std::_Exit(0);
    }
    close(sockets[1]);
    socket_ = sockets[0];
    start("completion:run-ahead");
  }
  void finish() {
    int status = 0;
    ASSERT_EQ(waitpid(other_, &status, 0), other_);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    other_ = 0;
    close(socket_);
  }

  static CUevent interprocess_event() {
    CUevent made = nullptr;
    EXPECT_EQ(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS), CUDA_SUCCESS);
    return made;
  }
  static CUdeviceptr open_memory(const CUipcMemHandle& handle) {
    CUdeviceptr memory = 0;
    EXPECT_EQ(cuIpcOpenMemHandle(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_SUCCESS);
    return memory;
  }
  static CUevent open_event(const CUipcEventHandle& handle) {
    CUevent opened = nullptr;
    EXPECT_EQ(cuIpcOpenEventHandle(&opened, handle), CUDA_SUCCESS);
    return opened;
  }
  static unsigned char first_byte(CUdeviceptr memory, CUstream after) {
    unsigned char byte = 0;
    EXPECT_EQ(cuMemcpyDtoHAsync(&byte, memory, 1, after), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(after), CUDA_SUCCESS);
    return byte;
  }

  struct Shown {
    CUipcMemHandle memory;
    CUipcEventHandle event;
  };
  // Fills memory and shows it, with an event after the fill.
  static Shown fill_and_show(CUdeviceptr memory, CUstream on, CUevent filled, unsigned char value) {
    Shown shown{};
    IN_OTHER(cuMemsetD8Async(memory, value, kPage, on) == CUDA_SUCCESS);
    IN_OTHER(cuEventRecord(filled, on) == CUDA_SUCCESS);
    IN_OTHER(cuIpcGetMemHandle(&shown.memory, memory) == CUDA_SUCCESS);
    IN_OTHER(cuIpcGetEventHandle(&shown.event, filled) == CUDA_SUCCESS);
    return shown;
  }

  int socket_ = -1;

 private:
  pid_t other_ = 0;
};

TEST_F(IpcTest, AStreamWaitsForWorkOfAnotherProcess) {
  begin([](int socket) {
    send(socket, fill_and_show(alloc(), stream(), interprocess_event(), 0x5a));
    (void)receive<char>(socket);
  });
  const auto shown = receive<Shown>(socket_);
  const CUdeviceptr memory = open_memory(shown.memory);
  const CUevent filled = open_event(shown.event);
  const CUstream reader = stream();
  EXPECT_EQ(first_byte(memory, reader), 0) << "late work ran although nobody waited for it";
  SIM_EXPECT_OK(cuStreamWaitEvent(reader, filled, 0));
  EXPECT_EQ(first_byte(memory, reader), 0x5a);
  SIM_EXPECT_OK(cuEventQuery(filled));
  SIM_EXPECT_OK(cuEventDestroy(filled));
  SIM_EXPECT_OK(cuIpcCloseMemHandle(memory));
  send(socket_, 'q');
}

TEST_F(IpcTest, TheHostWaitsForWorkOfAnotherProcess) {
  begin([](int socket) {
    const CUdeviceptr memory = alloc();
    const CUstream on = stream();
    const CUevent filled = interprocess_event();
    send(socket, fill_and_show(memory, on, filled, 1));
    (void)receive<char>(socket);
    send(socket, fill_and_show(memory, on, filled, 2));
    (void)receive<char>(socket);
  });
  const auto shown = receive<Shown>(socket_);
  const CUdeviceptr memory = open_memory(shown.memory);
  const CUevent filled = open_event(shown.event);
  SIM_EXPECT_OK(cuEventSynchronize(filled));
  EXPECT_EQ(first_byte(memory, stream()), 1);
  send(socket_, 'n');
  (void)receive<Shown>(socket_);
  int asked = 1;
  while (cuEventQuery(filled) == CUDA_ERROR_NOT_READY) ++asked;
  EXPECT_GT(asked, 1) << "the record again is another point";
  EXPECT_EQ(first_byte(memory, stream()), 2);
  send(socket_, 'q');
}

TEST_F(IpcTest, WhoOpensAnEventMayRecordIt) {
  begin([](int socket) {
    const CUdeviceptr memory = alloc();
    const CUstream on = stream();
    const CUevent event = interprocess_event();
    send(socket, fill_and_show(memory, on, event, 1));
    (void)receive<char>(socket);
    IN_OTHER(cuStreamWaitEvent(on, event, 0) == CUDA_SUCCESS);
    IN_OTHER(first_byte(memory, on) == 3);
  });
  const auto shown = receive<Shown>(socket_);
  const CUevent event = open_event(shown.event);
  const CUdeviceptr memory = open_memory(shown.memory);
  const CUstream writer = stream();
  SIM_EXPECT_OK(cuStreamWaitEvent(writer, event, 0));
  SIM_EXPECT_OK(cuMemsetD8Async(memory, 3, kPage, writer));
  SIM_EXPECT_OK(cuEventRecord(event, writer));
  send(socket_, 'r');
  finish();
}

TEST_F(IpcTest, NobodyWaitsForAProcessThatEnded) {
  begin([](int socket) { send(socket, fill_and_show(alloc(), stream(), interprocess_event(), 1)); });
  const auto shown = receive<Shown>(socket_);
  CUevent filled = nullptr;
  const CUresult opened = cuIpcOpenEventHandle(&filled, shown.event);
  finish();
  if (opened == CUDA_SUCCESS) {
    SIM_EXPECT_OK(cuEventSynchronize(filled));
  }
  EXPECT_EQ(cuIpcOpenEventHandle(&filled, shown.event), CUDA_ERROR_MAP_FAILED);
}

TEST_F(IpcTest, MemoryOpenedTwiceIsMappedOnce) {
  begin([](int socket) {
    send(socket, fill_and_show(alloc(), stream(), interprocess_event(), 1));
    (void)receive<char>(socket);
  });
  const auto shown = receive<Shown>(socket_);
  const CUdeviceptr memory = open_memory(shown.memory);
  EXPECT_EQ(open_memory(shown.memory), memory);
  EXPECT_EQ(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE) << "it is closed, not freed";
  SIM_EXPECT_OK(cuIpcCloseMemHandle(memory));
  SIM_EXPECT_OK(cuMemGetAddressRange(nullptr, nullptr, memory));
  SIM_EXPECT_OK(cuIpcCloseMemHandle(memory));
  EXPECT_EQ(cuMemGetAddressRange(nullptr, nullptr, memory), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuIpcCloseMemHandle(memory), CUDA_ERROR_INVALID_VALUE);
  send(socket_, 'q');
}

TEST_F(IpcTest, Mistakes) {
  start("");
  CUipcEventHandle event_handle{};
  CUipcMemHandle memory_handle{};
  CUevent made = nullptr;
  EXPECT_EQ(cuEventCreate(&made, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE) << "with timing";
  EXPECT_EQ(cuIpcGetEventHandle(&event_handle, event()), CUDA_ERROR_INVALID_VALUE) << "not made for it";
  EXPECT_EQ(cuIpcOpenEventHandle(&made, event_handle), CUDA_ERROR_INVALID_HANDLE);
  SIM_EXPECT_OK(cuIpcGetEventHandle(&event_handle, interprocess_event()));
  EXPECT_EQ(cuIpcOpenEventHandle(&made, event_handle), CUDA_ERROR_INVALID_CONTEXT) << "its own";
  CUdeviceptr opened = 0;
  EXPECT_EQ(cuIpcGetMemHandle(&memory_handle, map_new()), CUDA_ERROR_INVALID_VALUE) << "mapped memory";
  EXPECT_EQ(cuIpcOpenMemHandle(&opened, memory_handle, 1), CUDA_ERROR_INVALID_HANDLE);
  SIM_EXPECT_OK(cuIpcGetMemHandle(&memory_handle, alloc()));
  EXPECT_EQ(cuIpcOpenMemHandle(&opened, memory_handle, 0), CUDA_ERROR_INVALID_VALUE) << "flags";
  EXPECT_EQ(cuIpcOpenMemHandle(&opened, memory_handle, 1), CUDA_ERROR_INVALID_CONTEXT) << "its own";
}

}  // namespace
}  // namespace spillway::sim_test
