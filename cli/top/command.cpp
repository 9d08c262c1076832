#include "cli/top/command.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/output.h"
#include "cli/top/json.h"
#include "cli/top/view.h"
#include "driver/status.h"
#include "stats/live_reader.h"

namespace spillway {
namespace {

struct TopOptions {
  int pid = 0;  // 0: all
  std::string directory;
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

struct ScreenSize {
  size_t columns = 80;
  size_t rows = 24;
};

// Returns what the terminal says; where it says nothing, COLUMNS, or 80.
ScreenSize screen_size() {
  ScreenSize size;
  winsize found{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &found) == 0 && found.ws_col > 0) {
    size.columns = found.ws_col;
    size.rows = std::max<size_t>(found.ws_row, 1);
  } else if (const char* columns = std::getenv("COLUMNS"); columns != nullptr) {
    const long wanted = std::strtol(columns, nullptr, 10);
    if (wanted > 0 && wanted < 10000) size.columns = static_cast<size_t>(wanted);
  }
  return size;
}

bool is_terminal() {
  const char* kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

// NO_COLOR: no-color.org.
TopStyle style_of(const ScreenSize& size) {
  const char* no_colour = std::getenv("NO_COLOR");
  TopStyle style;
  style.columns = size.columns;
  style.has_colour = is_terminal() && (no_colour == nullptr || *no_colour == '\0');
  style.has_unicode = std::string_view(nl_langinfo(CODESET)) == "UTF-8";
  return style;
}

int show_once(const TopOptions& asked) {
  const LiveListing listing = look(asked);
  if (asked.pid != 0 && listing.pages.empty()) {
    return complain(Status::invalid_argument(
        fmt::format("process {} has no live page that this user may read", asked.pid)));
  }
  std::string text;
  if (asked.json) {
    text = top_json(listing, now_ns());
  } else {
    for (const std::string& line : top_lines(listing, now_ns(), style_of(screen_size()))) text += line + "\n";
  }
  const Status status = write_stdout(text);
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

Status draw(const TopOptions& asked) {
  const ScreenSize size = screen_size();
  std::vector<std::string> lines = top_lines(look(asked), now_ns(), style_of(size));
  lines.front() += "  q: quit";
  if (lines.size() > size.rows) {
    const size_t more = lines.size() - size.rows + 1;
    lines.resize(size.rows - 1);
    lines.push_back(fmt::format("{} more lines: spillway top --once", more));
  }
  std::string text = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : "\r\n") + lines[i] + "\x1b[K";
  return write_stdout(text + "\x1b[J");
}

// Waits for the next look. False where the user is done.
bool wait_for_next(const TopOptions& asked, int signals, bool has_keys) {
  std::array<pollfd, 2> waits{pollfd{signals, POLLIN, 0}, pollfd{has_keys ? STDIN_FILENO : -1, POLLIN, 0}};
  if (poll(waits.data(), waits.size(), static_cast<int>(asked.interval_s * 1000)) <= 0) return true;
  if (waits[0].revents != 0) {
    signalfd_siginfo signal{};
    const bool is_read = read(signals, &signal, sizeof signal) == static_cast<ssize_t>(sizeof signal);
    return is_read && signal.ssi_signo == SIGWINCH;
  }
  char key = 'q';
  return read(STDIN_FILENO, &key, 1) == 1 && key != 'q';
}

int show_until_done(const TopOptions& asked) {
  sigset_t told;
  sigemptyset(&told);
  for (const int signal : {SIGWINCH, SIGINT, SIGTERM, SIGHUP}) sigaddset(&told, signal);
  sigprocmask(SIG_BLOCK, &told, nullptr);
  const int signals = signalfd(-1, &told, SFD_CLOEXEC);
  if (signals < 0) return complain(Status::io("no signals can be received"));
  Status status;
  {
    const Terminal terminal;
    do {
      status = draw(asked);
    } while (status.ok() && wait_for_next(asked, signals, terminal.has_keys()));
  }
  close(signals);
  return status.ok() ? 0 : complain(status);
}

}  // namespace

std::function<std::optional<int>()> add_top_command(CLI::App& app) {
  auto asked = std::make_shared<TopOptions>();
  CLI::App* command = app.add_subcommand("top", "what every Spillway process of the machine holds, live");
  command->add_option("pid", asked->pid, "only this process")->check(CLI::PositiveNumber);
  command->add_option("--dir", asked->directory, "where live pages are, if programs were told live_dir");
  command->add_option("--interval", asked->interval_s, "seconds from one look to the next")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_flag("--once", asked->once, "print and end; also where the output is no terminal");
  command->add_flag("--json", asked->json, "JSON instead of text; implies --once");
  return [=]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    std::setlocale(LC_CTYPE, "");
    return asked->once || asked->json || !is_terminal() ? show_once(*asked) : show_until_done(*asked);
  };
}

}  // namespace spillway
