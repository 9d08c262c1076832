// Snapshots made by hand: a writer for the pickles that PyTorch writes (protocol 2), and the few lines of
// schema.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway::test {

class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02") {}

  PickleWriter& raw(std::string_view bytes) {
    out_ += bytes;
    return *this;
  }
  PickleWriter& text(std::string_view value) {
    out_ += 'X';
    little_endian(value.size(), 4);
    out_ += value;
    return *this;
  }
  PickleWriter& integer(int64_t value) {
    out_ += "\x8a\x08";
    little_endian(static_cast<uint64_t>(value), 8);
    return *this;
  }
  PickleWriter& begin_list() { return raw("]("); }
  PickleWriter& end_list() { return raw("e"); }
  PickleWriter& begin_dict() { return raw("}("); }
  PickleWriter& end_dict() { return raw("u"); }

  std::string finish() const { return out_ + '.'; }

 private:
  void little_endian(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  std::string out_;
};

struct Event {
  std::string action;
  uint64_t address = 0;
  int64_t size = 0;
  int64_t stream = 0;
};

struct Live {
  uint64_t address = 0;
  int64_t size = 0;
  int64_t stream = 0;
  std::string state = "active_allocated";
};

inline void write_event(PickleWriter& pickle, const Event& event) {
  pickle.begin_dict();
  pickle.text("action").text(event.action).text("addr").integer(static_cast<int64_t>(event.address));
  pickle.text("size").integer(event.size).text("stream").integer(event.stream);
  pickle.text("frames").begin_list().text("a frame").end_list();
  pickle.end_dict();
}

inline void write_segment(PickleWriter& pickle, const Live& live) {
  pickle.begin_dict().text("device").integer(0).text("stream").integer(live.stream);
  pickle.text("address").integer(static_cast<int64_t>(live.address)).text("blocks").begin_list().begin_dict();
  pickle.text("size").integer((live.size + 511) / 512 * 512).text("requested_size").integer(live.size);
  pickle.text("state").text(live.state).end_dict().end_list().end_dict();
}

// The pickle of a snapshot with the events of each device and what is live on device 0 at the end.
inline std::string snapshot(const std::vector<std::vector<Event>>& devices,
                            const std::vector<Live>& live = {}) {
  PickleWriter pickle;
  pickle.begin_dict().text("segments").begin_list();
  for (const Live& block : live) write_segment(pickle, block);
  pickle.end_list().text("device_traces").begin_list();
  for (const auto& events : devices) {
    pickle.begin_list();
    for (const Event& event : events) write_event(pickle, event);
    pickle.end_list();
  }
  return pickle.end_list().end_dict().finish();
}

// An ordinary free, as PyTorch records it.
inline void add_free(std::vector<Event>& events, uint64_t address, int64_t size, int64_t stream = 0) {
  events.push_back({"free_requested", address, size, stream});
  events.push_back({"free_completed", address, size, stream});
}

}  // namespace spillway::test
