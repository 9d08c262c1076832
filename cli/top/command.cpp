#include "cli/top/command.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/help/values.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/top/json.h"
#include "cli/top/screen.h"
#include "cli/top/view.h"
#include "driver/status.h"
#include "stats/live_reader.h"

namespace spillway {
namespace {

struct TopOptions {
  int pid = 0;  // 0: all
  std::string directory;
  std::string output;
  double interval_s = 1;
  bool once = false;
  bool json = false;
};

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

LiveListing look(const TopOptions& asked) {
  LiveListing listing = list_live_pages(asked.directory);
  if (asked.pid == 0) return listing;
  std::erase_if(listing.pages, [&](const LiveReading& page) { return page.process.pid != asked.pid; });
  listing.problems.clear();
  return listing;
}

TopStyle style_of(const ScreenSize& size) {
  return {size.columns, has_colours(), std::string_view(nl_langinfo(CODESET)) == "UTF-8"};
}

int show_once(const TopOptions& asked) {
  const LiveListing listing = look(asked);
  if (asked.pid != 0 && listing.pages.empty()) {
    return complain(Status::invalid_argument(
        fmt::format("process {} has no live page that this user may read", asked.pid)));
  }
  std::string text;
  TopStyle style = style_of(screen_size());
  style.has_colour = style.has_colour && asked.output.empty();
  if (asked.json) {
    text = top_json(listing, now_ns());
  } else {
    for (const std::string& line : top_lines(listing, now_ns(), style)) text += line + "\n";
  }
  const Status status = write_answer(asked.output, text);
  return status.ok() ? 0 : complain(status);
}

// ---- The full screen

// The terminal as this command needs it, and as it was before at the end: keys come at once and unseen, and
// the screen is a second one.
class Terminal {
 public:
  Terminal() {
    has_keys_ = tcgetattr(STDIN_FILENO, &before_) == 0;
    if (has_keys_) {
      termios wanted = before_;
      wanted.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      tcsetattr(STDIN_FILENO, TCSANOW, &wanted);
    }
    (void)write_stdout("\x1b[?1049h\x1b[?25l");
  }
  ~Terminal() {
    (void)write_stdout("\x1b[?25h\x1b[?1049l");
    if (has_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  bool has_keys() const { return has_keys_; }

 private:
  termios before_{};
  bool has_keys_ = false;
};

Status draw(const TopScreen& screen, const LiveListing& listing) {
  const ScreenSize size = screen_size();
  const std::vector<std::string> lines = screen_lines(screen, listing, now_ns(), style_of(size), size.rows);
  std::string text = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : "\r\n") + lines[i] + "\x1b[K";
  return write_stdout(text + "\x1b[J");
}

// Divides what came of the keyboard into keys: an arrow is three letters.
std::vector<std::string> keys_of(std::string_view read) {
  std::vector<std::string> out;
  while (!read.empty()) {
    const bool is_sequence = read.size() >= 3 && read[0] == '\x1b' && (read[1] == '[' || read[1] == 'O');
    out.emplace_back(read.substr(0, is_sequence ? 3 : 1));
    read.remove_prefix(out.back().size());
  }
  return out;
}

// The process that was asked about, if it is still the same one.
void end_process(TopScreen& screen, const LiveListing& listing) {
  const pid_t pid = std::exchange(screen.asked_about, 0);
  for (const LiveReading& page : listing.pages) {
    if (page.process.pid != pid) continue;
    const Result<LiveReading> now = read_live_page(page.path);
    const bool is_there =
        now.ok() && (now.value().life == LiveLife::kRunning || now.value().life == LiveLife::kStopped);
    screen.message = is_there && kill(pid, SIGTERM) == 0
                         ? fmt::format("process {} was told to end", pid)
                         : fmt::format("process {} was not ended: {}", pid,
                                       is_there ? std::strerror(errno) : "it is not there any more");
  }
}

struct Waited {
  bool is_done = false;
  bool is_key = false;  // what is shown is shown again at once, without a new look
};

Waited take_keys(TopScreen& screen, const LiveListing& listing) {
  std::array<char, 64> read_now{};
  const ssize_t count = read(STDIN_FILENO, read_now.data(), read_now.size());
  if (count <= 0) return {true};
  for (const std::string& key : keys_of({read_now.data(), static_cast<size_t>(count)})) {
    const TopKey what = press(screen, key, listing);
    if (what == TopKey::kQuit) return {true};
    if (what == TopKey::kEnd) end_process(screen, listing);
  }
  return {false, true};
}

// Waits for a key, a signal, or the time of the next look.
Waited wait_for_next(const TopOptions& asked, int signals, bool has_keys, TopScreen& screen,
                     const LiveListing& listing) {
  std::array<pollfd, 2> waits{pollfd{signals, POLLIN, 0}, pollfd{has_keys ? STDIN_FILENO : -1, POLLIN, 0}};
  if (poll(waits.data(), waits.size(), static_cast<int>(asked.interval_s * 1000)) <= 0) return {};
  if (waits[0].revents != 0) {
    signalfd_siginfo signal{};
    const bool is_read = read(signals, &signal, sizeof signal) == static_cast<ssize_t>(sizeof signal);
    return {!is_read || signal.ssi_signo != SIGWINCH};
  }
  return take_keys(screen, listing);
}

Status show_on_terminal(const TopOptions& asked, int signals) {
  const Terminal terminal;
  TopScreen screen;
  LiveListing listing = look(asked);
  while (true) {
    if (Status status = draw(screen, listing); !status.ok()) return status;
    const Waited waited = wait_for_next(asked, signals, terminal.has_keys(), screen, listing);
    if (waited.is_done) return {};
    if (!waited.is_key) listing = look(asked);
  }
}

int show_until_done(const TopOptions& asked) {
  sigset_t told;
  sigemptyset(&told);
  for (const int signal : {SIGWINCH, SIGINT, SIGTERM, SIGHUP}) sigaddset(&told, signal);
  sigprocmask(SIG_BLOCK, &told, nullptr);
  const int signals = signalfd(-1, &told, SFD_CLOEXEC);
  if (signals < 0) return complain(Status::io("no signals can be received"));
  const Status status = show_on_terminal(asked, signals);
  close(signals);
  return status.ok() ? 0 : complain(status);
}

}  // namespace

std::function<std::optional<int>()> add_top_command(CLI::App& app) {
  auto asked = std::make_shared<TopOptions>();
  CLI::App* command =
      app.add_subcommand("top", "Show what every Spillway process of the machine holds, live");
  command->group("Watch a machine");
  command->add_option("PID", asked->pid, "Only this process")->check(whole(1, INT32_MAX));
  command->add_option("--dir", asked->directory, "Where live pages are, if programs were told live_dir")
      ->type_name("FOLDER")
      ->check(folder_to_read());
  CLI::Option* interval =
      command->add_option("--interval", asked->interval_s, "Seconds from one look to the next")
          ->type_name("SECONDS")
          ->check(number(0.1, 3600))
          ->capture_default_str();
  command->add_flag("--once", asked->once, "Print and end; also where the output is no terminal")
      ->excludes(interval);
  command->add_option("--output", asked->output, "Write the answer to this file instead; implies --once")
      ->type_name("FILE")
      ->check(file_to_write())
      ->excludes(interval);
  command->add_flag("--json", asked->json, "JSON instead of text; implies --once")->excludes(interval);
  set_examples(*command, {{"Watch all processes; h tells the keys", "spillway top"},
                          {"For a script", "spillway top --json"}});
  return [=]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    std::setlocale(LC_CTYPE, "");
    const bool once = asked->once || asked->json || !asked->output.empty() || !is_terminal();
    return once ? show_once(*asked) : show_until_done(*asked);
  };
}

}  // namespace spillway
