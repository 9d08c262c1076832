#include "cli/launch/child.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <thread>

#include "tests/support/folder.h"

namespace spillway {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::KilledBySignal;

Result<Ended> shell(const std::string& script) {
  return run_and_wait({"/bin/sh", "-c", script});
}

TEST(Child, EndsAreTold) {
  EXPECT_EQ(shell("exit 0")->exit_code(), 0);
  EXPECT_EQ(shell("exit 3")->code, 3);
  Result<Ended> killed = shell("kill -KILL $$");
  ASSERT_TRUE(killed.ok());
  EXPECT_EQ(killed->signal, SIGKILL);
  EXPECT_EQ(killed->exit_code(), 137);
}

// What the program prints and reads is this process's own.
TEST(Child, HasTheFilesOfItsParent) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(shell("echo said")->signal, 0);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("said"));
}

TEST(Child, WhatCannotBeStartedIsAnErrorAndNoProgramsCode) {
  for (const char* name : {"/no/such/program", "/etc/passwd", "/etc"}) {
    Result<Ended> ended = run_and_wait({name});
    ASSERT_FALSE(ended.ok()) << name;
    EXPECT_THAT(ended.status().text(), HasSubstr(name));
  }
}

// As below nohup.
TEST(ChildDeathTest, WhatIsIgnoredStaysIgnored) {
  EXPECT_EXIT(
      {
        ::signal(SIGHUP, SIG_IGN);
        Result<Ended> ended = shell("kill -HUP $PPID; sleep 0.2; exit 4");
        ::_exit(ended.ok() && shell("exit 0").ok() ? ended->code : 1);
      },
      ExitedWithCode(4), "");
}

TEST(Child, SignalsAreAsTheyWereAfterwards) {
  ASSERT_TRUE(shell("exit 0").ok());
  for (const int signal : {SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction now {};
    ASSERT_EQ(::sigaction(signal, nullptr, &now), 0);
    EXPECT_EQ(now.sa_handler, SIG_DFL) << signal;
  }
  sigset_t blocked;
  ASSERT_EQ(::sigprocmask(SIG_SETMASK, nullptr, &blocked), 0);
  EXPECT_EQ(::sigismember(&blocked, SIGTERM), 0);
}

// Nor has the program any that were blocked while it was started.
TEST(Child, TheProgramBlocksNothing) {
  EXPECT_EQ(shell("kill -TERM $$; sleep 5")->signal, SIGTERM);
}

bool is_running(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t state = line.rfind(") ");
  return state != std::string::npos && line[state + 2] != 'Z';
}

bool within_seconds(int seconds, const std::function<bool()>& is_so) {
  for (int i = 0; i < 100 * seconds && !is_so(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return is_so();
}

TEST(Child, IsKilledWithItsParent) {
  const test::Folder folder;
  const std::string file = folder.file("pid");
  const pid_t parent = ::fork();
  if (parent == 0) {
    (void)shell("echo $$ > " + file + ".part; mv " + file + ".part " + file + "; exec sleep 600");
    ::_exit(0);
  }
  ASSERT_GT(parent, 0);
  std::string pid;
  const bool has_begun = within_seconds(60, [&] { return bool(std::ifstream(file) >> pid); });
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  ASSERT_TRUE(has_begun);
  EXPECT_TRUE(within_seconds(60, [&] { return !is_running(pid); }));
}

TEST(ChildDeathTest, OneEndsAsItsProgram) {
  EXPECT_EQ(end_as({3, 0}), 3);
  EXPECT_EXIT(::_exit(end_as({0, SIGTERM})), KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(::_exit(end_as({0, SIGSEGV})), KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace spillway
