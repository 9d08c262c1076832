// Several processes on one device: each takes what the others leave, finds what they give back, and what a
// process held is free when it is dead.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "include/spillway/spillway.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// A process that does one thing after another when it is told to: 'a' allocates 96 MiB, 'f' frees and trims.
// It answers 'y' or, where there is no memory, 'n'.
class Neighbour {
 public:
  Neighbour() {
    SPW_CHECK(pipe(to_) == 0 && pipe(from_) == 0);
    process_ = fork();
    SPW_CHECK(process_ >= 0);
    if (process_ == 0) serve();
  }
  ~Neighbour() { kill_now(); }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  bool tell(char what) {
    char answer = '?';
    SPW_CHECK(write(to_[1], &what, 1) == 1 && read(from_[0], &answer, 1) == 1);
    SPW_CHECK(answer == 'y' || answer == 'n');
    return answer == 'y';
  }
  void kill_now() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  [[noreturn]] void serve() {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);  // a check that fails in the parent must not leave it behind
    const auto driver = start_device();
    void* block = nullptr;
    for (char what = 0; read(to_[0], &what, 1) == 1;) {
      spw_status status = SPW_OK;
      if (what == 'a') {
        status = spw_alloc(96 * kMiB, 0, nullptr, &block);
        SPW_CHECK(status == SPW_OK || status == SPW_ERROR_OUT_OF_MEMORY);
      } else {
        SPW_CHECK(spw_free(block) == SPW_OK && spw_trim(0) == SPW_OK);
      }
      SPW_CHECK(spw_validate(0) == SPW_OK);
      const char answer = status == SPW_OK ? 'y' : 'n';
      SPW_CHECK(write(from_[1], &answer, 1) == 1);
    }
    std::_Exit(0);
  }

  int to_[2] = {};
  int from_[2] = {};
  pid_t process_ = 0;
};

TEST(Processes, ShareADeviceNearItsLimit) {
  if (lacks_controls()) GTEST_SKIP() << "a real device cannot be given the size that is tested";
  const Folder folder;
  in_child({{"SPILLWAY_SIM", "capacity:128MiB,shared:" + folder.file("account")}}, [] {
    Neighbour neighbour;
    const auto driver = start_device();
    void* block = nullptr;
    void* more = nullptr;
    SPW_CHECK(spw_alloc(24 * kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(neighbour.tell('a'));

    SPW_CHECK(spw_alloc(64 * kMiB, 0, nullptr, &more) == SPW_ERROR_OUT_OF_MEMORY);
    SPW_CHECK(std::strstr(spw_last_error(),
                          "+ other processes, contexts and libraries 96.00 MiB (100663296)") != nullptr);
    SPW_CHECK(spw_validate(0) == SPW_OK);
    uint64_t free_bytes = 0;
    SPW_CHECK(spw_memory_info(0, &free_bytes, nullptr) == SPW_OK && free_bytes == 8 * kMiB);

    SPW_CHECK(neighbour.tell('f'));
    SPW_CHECK(spw_alloc(64 * kMiB, 0, nullptr, &more) == SPW_OK);
    SPW_CHECK(!neighbour.tell('a'));
    SPW_CHECK(spw_free(more) == SPW_OK && spw_trim(0) == SPW_OK);
    SPW_CHECK(neighbour.tell('a'));

    SPW_CHECK(spw_alloc(64 * kMiB, 0, nullptr, &more) == SPW_ERROR_OUT_OF_MEMORY);
    neighbour.kill_now();
    SPW_CHECK(spw_alloc(100 * kMiB, 0, nullptr, &more) == SPW_OK);
    SPW_CHECK(spw_free(more) == SPW_OK && spw_free(block) == SPW_OK && spw_validate(0) == SPW_OK);
  });
}

// Its parent's blocks are no memory of the child's, and it ends as any other process.
TEST(Processes, AChildOfForkIsRefusedAndEndsWell) {
  in_child({}, [] {
    const auto driver = start_device();
    const auto large = 24 * kMiB;
    void* kept = nullptr;
    void* freed = nullptr;
    SPW_CHECK(spw_alloc(512, 0, nullptr, &freed) == SPW_OK && spw_alloc(large, 0, nullptr, &kept) == SPW_OK);
    const pid_t child = fork();
    if (child == 0) {
      void* block = nullptr;
      SPW_CHECK(spw_alloc(3 * large, 0, nullptr, &block) == SPW_ERROR_DRIVER && block == nullptr);
      SPW_CHECK(last_error_has("CUDA_ERROR_NOT_INITIALIZED"));
      (void)spw_free(freed);
      (void)spw_free(kept);
      (void)spw_trim(0);
      uint64_t free_bytes = 0;
      SPW_CHECK(spw_memory_info(0, &free_bytes, nullptr) != SPW_OK);
      std::exit(0);
    }
    int status = -1;
    SPW_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    SPW_CHECK(spw_free(freed) == SPW_OK && spw_free(kept) == SPW_OK && spw_validate(0) == SPW_OK);
  });
}

}  // namespace
}  // namespace spillway::test
