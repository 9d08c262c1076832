// The thread that serves a meeting.
#pragma once

#include <memory>
#include <string>
#include <thread>

namespace spillway::nccl {

class Server {
 public:
  // Serves who connects to the listening socket, which it owns. `ranks` as Meeting's.
  Server(int listener, int ranks);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Null: the name is not to be had.
  static std::unique_ptr<Server> listen(const std::string& name, int ranks);
  // Ends the thread and answers what spwMeetingEnd does.
  std::string end();

 private:
  struct Loop;
  void stop();
  int stop_;
  int listener_;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace spillway::nccl
