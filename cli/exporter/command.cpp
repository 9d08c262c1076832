#include "cli/exporter/command.h"

#include <fmt/format.h>
#include <httplib.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "cli/exporter/metrics.h"
#include "cli/output.h"
#include "driver/status.h"
#include "stats/live_reader.h"

namespace spillway {
namespace {

constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";
constexpr size_t kThreads = 4;

struct Asked {
  std::string listen = "127.0.0.1:9835";
  std::string directory;
};

struct Address {
  std::string host;
  int port = 0;
};

int complain(const Status& status) {
  std::fprintf(stderr, "spillway: %s\n", status.text().c_str());
  return 1;
}

// "host:port", an IPv6 host in brackets. Port 0 takes any.
Result<Address> parse_address(const std::string& text) {
  const auto refused = [&] {
    return Status::invalid_argument(
        fmt::format("--listen: '{}' is no address; allowed: host:port, such as 127.0.0.1:9835", text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return refused();
  Address address{text.substr(0, colon), 0};
  if (address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return refused();
  }
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (error != std::errc() || rest != end || address.port < 0 || address.port > 65535) return refused();
  return address;
}

void add_pages(httplib::Server& server, const std::string& directory) {
  // Not the library's own choice, which lets a second server take the same port.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.Get("/metrics", [directory](const httplib::Request&, httplib::Response& response) {
    response.set_content(metrics_text(list_live_pages(directory)), kContentType);
  });
  server.Get("/", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("Spillway's counters for Prometheus are at /metrics\n", "text/plain");
  });
}

// Serves until SIGINT or SIGTERM.
int serve(const Asked& asked) {
  Result<Address> address = parse_address(asked.listen);
  if (!address.ok()) return complain(address.status());
  // Before there are threads: one of them would take the signal.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);

  httplib::Server server;
  add_pages(server, asked.directory);
  int port = address->port;
  if (port == 0) {
    port = server.bind_to_any_port(address->host);
  } else if (!server.bind_to_port(address->host, port)) {
    port = -1;
  }
  if (port < 0) {
    return complain(
        Status::io(fmt::format("--listen: {}: cannot listen there: it is in use, or no address of "
                               "this machine",
                               asked.listen)));
  }
  bool has_failed = false;
  std::thread listener([&] {
    has_failed = !server.listen_after_bind();
    if (has_failed) kill(getpid(), SIGTERM);
  });
  const Status told = write_stdout(fmt::format("listening on {}, port {}\n", address->host, port));
  int signal = 0;
  if (told.ok()) sigwait(&ends, &signal);
  server.stop();
  listener.join();
  if (!told.ok()) return complain(told);
  return has_failed ? complain(Status::io(fmt::format("--listen: {}: no longer listening", asked.listen)))
                    : 0;
}

}  // namespace

std::function<std::optional<int>()> add_exporter_command(CLI::App& app) {
  auto asked = std::make_shared<Asked>();
  CLI::App* command =
      app.add_subcommand("exporter", "serve the counters of all processes of the machine to Prometheus");
  command->add_option("--listen", asked->listen, "address and port; port 0 takes any")->capture_default_str();
  command->add_option("--dir", asked->directory, "where live pages are, if programs were told live_dir");
  return [=]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    return serve(*asked);
  };
}

}  // namespace spillway
