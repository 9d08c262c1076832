// Signals for a process that waits for a program.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "cli/launch/child.h"

namespace spillway {
namespace {

using ::testing::ExitedWithCode;

Result<Ended> shell(const std::string& script) {
  return run_and_wait({"/bin/sh", "-c", script});
}

// The program sends this process a signal, as an operator or a scheduler does, and waits for what comes of
// it.
std::string sends(const std::string& signal) {
  return "kill -" + signal + " $PPID; while :; do sleep 0.05; done";
}

TEST(ChildDeathTest, ASignalReachesTheProgramWhoseEndIsTold) {
  for (const char* signal : {"TERM", "HUP", "INT", "QUIT"}) {
    const std::string script = std::string("trap 'exit 7' ") + signal + "; " + sends(signal);
    EXPECT_EXIT(::_exit(shell(script)->exit_code()), ExitedWithCode(7), "") << signal;
    EXPECT_EXIT(::_exit(shell(sends(signal))->signal == 0 ? 1 : 9), ExitedWithCode(9), "") << signal;
  }
}

// Who was told to end starts nothing more, as `dryrun --compare` would.
TEST(ChildDeathTest, AfterThatNothingIsStarted) {
  EXPECT_EXIT(
      {
        (void)shell(sends("TERM"));
        Result<Ended> next = shell("exit 0");
        ::_exit(!next.ok() && next.status().text().find("SIGTERM came") != std::string::npos ? 9 : 1);
      },
      ExitedWithCode(9), "");
}

// A signal that asks for a dump ends nothing.
TEST(ChildDeathTest, ASignalForTheProgramAloneIsNoEnd) {
  EXPECT_EXIT(
      {
        Result<Ended> asked = shell("trap 'exit 5' USR2; " + sends("USR2"));
        Result<Ended> next = shell("exit 6");
        ::_exit(asked.ok() && next.ok() ? 10 * asked->code + next->code : 1);
      },
      ExitedWithCode(56), "");
}

}  // namespace
}  // namespace spillway
