#include "cli/exporter/command.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/exporter/metrics.h"
#include "cli/help/values.h"
#include "cli/output.h"
#include "driver/status.h"
#include "stats/live_reader.h"

namespace spillway {
namespace {

constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";
constexpr int kSecondsPerRequest = 10;  // a peer that says nothing for so long is let go
constexpr int kMostHeaderBytes = 16 << 10;
constexpr int kMostBodyBytes = 4 << 10;  // of what is refused anyway

struct ExporterOptions {
  std::string listen = "127.0.0.1:9835";
  std::string directory;
};

struct Address {
  std::string host;
  int port = 0;
};

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

struct Free {
  void operator()(event_base* base) const { event_base_free(base); }
  void operator()(evhttp* server) const { evhttp_free(server); }
  void operator()(event* watch) const { event_free(watch); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

void answer(evhttp_request* request, const char* type, const std::string& text) {
  evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", type);
  evbuffer* body = evhttp_request_get_output_buffer(request);
  if (evbuffer_add(body, text.data(), text.size()) != 0) {
    evhttp_send_error(request, HTTP_INTERNAL, nullptr);
    return;
  }
  evhttp_send_reply(request, HTTP_OK, nullptr, nullptr);
}

void answer_metrics(evhttp_request* request, void* directory) {
  answer(request, kContentType, metrics_text(list_live_pages(*static_cast<const std::string*>(directory))));
}

void answer_root(evhttp_request* request, void*) {
  answer(request, "text/plain", "Spillway's counters for Prometheus are at /metrics\n");
}

void end_loop(evutil_socket_t, short, void* base) {
  event_base_loopbreak(static_cast<event_base*>(base));
}

// Returns the port that the system chose where 0 was asked for.
Result<int> port_of(evhttp_bound_socket* bound) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getsockname(evhttp_bound_socket_get_fd(bound), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    return Status::io("--listen: the port that was taken is not known");
  }
  const bool is_ipv6 = address.ss_family == AF_INET6;
  return ntohs(is_ipv6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                       : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

// Serves on this one thread until SIGINT or SIGTERM.
int serve(const ExporterOptions& asked) {
  Result<Address> address = parse_address(asked.listen);
  if (!address.ok()) return complain(address.status());
  std::signal(SIGPIPE, SIG_IGN);                    // a peer that left is an error of its connection
  event_set_log_callback([](int, const char*) {});  // what is wrong is said once, below

  const Owned<event_base> base(event_base_new());
  const Owned<evhttp> server(base == nullptr ? nullptr : evhttp_new(base.get()));
  if (server == nullptr) return complain(Status::io("exporter: the system gives no event queue"));
  const Owned<event> on_interrupt(evsignal_new(base.get(), SIGINT, end_loop, base.get()));
  const Owned<event> on_end(evsignal_new(base.get(), SIGTERM, end_loop, base.get()));
  if (on_interrupt == nullptr || on_end == nullptr || event_add(on_interrupt.get(), nullptr) != 0 ||
      event_add(on_end.get(), nullptr) != 0) {
    return complain(Status::io("exporter: signals cannot be watched"));
  }
  std::string directory = asked.directory;
  evhttp_set_allowed_methods(server.get(), EVHTTP_REQ_GET);
  evhttp_set_max_headers_size(server.get(), kMostHeaderBytes);
  evhttp_set_max_body_size(server.get(), kMostBodyBytes);
  evhttp_set_timeout(server.get(), kSecondsPerRequest);
  evhttp_set_cb(server.get(), "/metrics", answer_metrics, &directory);
  evhttp_set_cb(server.get(), "/", answer_root, nullptr);

  evhttp_bound_socket* bound = evhttp_bind_socket_with_handle(server.get(), address->host.c_str(),
                                                              static_cast<ev_uint16_t>(address->port));
  if (bound == nullptr) {
    return complain(
        Status::io(fmt::format("--listen: {}: cannot listen there: it is in use, or no address of "
                               "this machine",
                               asked.listen)));
  }
  const Result<int> port = port_of(bound);
  if (!port.ok()) return complain(port.status());
  if (const Status told =
          write_stdout(fmt::format("listening on {}, port {}\n", address->host, port.value()));
      !told.ok()) {
    return complain(told);
  }
  return event_base_dispatch(base.get()) == 0
             ? 0
             : complain(Status::io(fmt::format("--listen: {}: no longer listening", asked.listen)));
}

}  // namespace

std::function<std::optional<int>()> add_exporter_command(CLI::App& app) {
  auto asked = std::make_shared<ExporterOptions>();
  CLI::App* command =
      app.add_subcommand("exporter", "Serve the counters of all processes of the machine to Prometheus");
  command->group("Watch a machine");
  command->add_option("--listen", asked->listen, "Host and port, as host:port; port 0 takes any")
      ->type_name("ADDRESS")
      ->capture_default_str();
  command->add_option("--dir", asked->directory, "Where live pages are, if programs were told live_dir")
      ->type_name("FOLDER");
  set_examples(*command, {{"To a Prometheus of this machine", "spillway exporter"},
                          {"To one of another", "spillway exporter --listen 0.0.0.0:9835"}});
  return [=]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    return serve(*asked);
  };
}

}  // namespace spillway
