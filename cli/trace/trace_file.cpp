// Reads trace files: zstd frames of records, see stats/trace_record.h.
#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/trace/file.h"
#include "cli/trace/recording.h"

namespace spillway {
namespace {

// Records of a file, unpacked: 90 million of them.
constexpr uint64_t kMostUnpackedBytes = uint64_t{4} << 30;
constexpr uint64_t kMostFrameBytes = uint64_t{256} << 20;
constexpr std::string_view kZstdMagic("\x28\xb5\x2f\xfd", 4);

struct Unpacked {
  std::string bytes;
  std::string missing;
};

Result<Unpacked> unpack(std::string_view data) {
  Unpacked out;
  const std::string_view all = data;
  while (!data.empty()) {
    const auto stop = [&](const char* why) {
      out.missing =
          fmt::format("the last {} bytes, from byte {}, {}", data.size(), all.size() - data.size(), why);
    };
    const size_t packed = ZSTD_findFrameCompressedSize(data.data(), data.size());
    if (ZSTD_isError(packed) != 0) {
      stop("are no whole frame");
      break;
    }
    const unsigned long long size = ZSTD_getFrameContentSize(data.data(), packed);
    if (size > kMostFrameBytes || out.bytes.size() + size > kMostUnpackedBytes) {
      return Status::invalid_argument(fmt::format("at byte {}: more than {} bytes unpacked",
                                                  all.size() - data.size(), kMostUnpackedBytes));
    }
    const size_t before = out.bytes.size();
    out.bytes.resize(before + size);
    const size_t got = ZSTD_decompress(out.bytes.data() + before, size, data.data(), packed);
    if (ZSTD_isError(got) != 0 || got != size) {
      out.bytes.resize(before);
      stop("are damaged");
      break;
    }
    data.remove_prefix(packed);
  }
  return out;
}

struct Header {
  std::string run;
  uint64_t part = 0;
};

class TraceFileReader {
 public:
  explicit TraceFileReader(std::string_view data) : data_(data) {}

  Result<Recording> read(Header* header) {
    while (at_ < data_.size() && error_.ok()) step();
    if (error_.ok() && !has_header_) fail("it does not begin with a header");
    if (!error_.ok()) return std::move(error_);
    settle_frames();
    settle_times();
    std::stable_sort(out_.events.begin(), out_.events.end(), [](const TraceRecord& a, const TraceRecord& b) {
      const bool a_first = a.kind == TraceKind::kLive;
      const bool b_first = b.kind == TraceKind::kLive;
      return a_first != b_first ? a_first : a.ticks < b.ticks;
    });
    out_.is_spillway = true;
    *header = header_;
    return std::move(out_);
  }

 private:
  void fail(const std::string& why) {
    if (error_.ok())
      error_ = Status::invalid_argument(fmt::format("not a trace: at unpacked byte {}: {}", record_at_, why));
  }

  void step() {
    record_at_ = at_;
    TraceRecord record;
    if (data_.size() - at_ < sizeof(record)) return fail("half a record");
    std::memcpy(&record, data_.data() + at_, sizeof(record));
    at_ += sizeof(record);
    std::string_view payload;
    if (has_payload(record.kind)) {
      if (record.requested_bytes > data_.size() - at_ ||
          padded_payload(record.requested_bytes) > data_.size() - at_)
        return fail("half a payload");
      payload = data_.substr(at_, record.requested_bytes);
      at_ += padded_payload(record.requested_bytes);
    }
    if (!has_header_ && record.kind != TraceKind::kHeader) return fail("it does not begin with a header");
    take(record, payload);
  }

  void take(TraceRecord record, std::string_view payload) {
    switch (record.kind) {
      case TraceKind::kHeader:
        return take_header(payload);
      case TraceKind::kText:
        texts_[record.stack] = payload;
        return;
      case TraceKind::kTag:
        out_.tags[record.tag] = payload;
        return;
      case TraceKind::kFrame:
        frames_[record.stack] = record;
        return;
      case TraceKind::kStack:
        return take_stack(record.stack, payload);
      case TraceKind::kClock:
        clocks_.emplace_back(record.ticks, record.address);
        return;
      case TraceKind::kDropped:
        out_.dropped += record.block_bytes;
        return;
      case TraceKind::kEnd:
        ended_ = true;
        return;
      case TraceKind::kMark:
        out_.marks.emplace_back(payload);
        record.address = out_.marks.size() - 1;
        break;
      default:
        if (record.kind < TraceKind::kAllocate ||
            (record.kind > TraceKind::kLimit && record.kind != TraceKind::kLive)) {
          return fail(fmt::format("a record of unknown kind {}", static_cast<int>(record.kind)));
        }
    }
    if (record.device < 0) return fail(fmt::format("a record of device {}", record.device));
    out_.events.push_back(record);
  }

  void take_header(std::string_view payload) {
    const auto json = nlohmann::json::parse(payload, nullptr, false);
    if (!json.is_object()) return fail("its header is not JSON");
    try {
      const int version = json.at("version").get<int>();
      if (version != kTraceVersion)
        return fail(fmt::format("version {}; allowed: {}", version, kTraceVersion));
      out_.process_id = json.value("process_id", int64_t{0});
      out_.rank = json.value("rank", int64_t{0});
      header_ = {json.value("run", std::string()), json.value("part", uint64_t{0})};
      has_header_ = true;
    } catch (const nlohmann::json::exception&) {
      fail("its header lacks the version, or has a member of another type");
    }
  }

  void take_stack(uint32_t number, std::string_view payload) {
    if (payload.size() % sizeof(uint32_t) != 0) return fail("a stack of half a frame");
    std::vector<uint32_t> frames(payload.size() / sizeof(uint32_t));
    if (!payload.empty()) std::memcpy(frames.data(), payload.data(), payload.size());
    out_.stacks[number] = std::move(frames);
  }

  // Numbers of frames become places in a row.
  void settle_frames() {
    std::map<uint32_t, uint32_t> places;
    for (const auto& [number, record] : frames_) {
      places[number] = static_cast<uint32_t>(out_.frames.size());
      out_.frames.push_back({text(record.address), text(record.stream), record.block_bytes});
    }
    for (auto& [number, frames] : out_.stacks) {
      std::erase_if(frames, [&](uint32_t frame) { return places.count(frame) == 0; });
      for (uint32_t& frame : frames) frame = places[frame];
    }
  }
  std::string text(uint64_t number) const {
    const auto found = texts_.find(static_cast<uint32_t>(number));
    return found == texts_.end() ? "?" : found->second;
  }

  // Two readings of both clocks, as far apart as there are, tell the rate.
  void settle_times() {
    out_.ended = ended_;
    if (clocks_.empty()) return;
    const auto [first_ticks, first_ns] = clocks_.front();
    const auto [last_ticks, last_ns] = clocks_.back();
    if (clocks_.size() == 1) {
      for (TraceRecord& event : out_.events) event.ticks += first_ns - first_ticks;
      return;
    }
    const double rate =
        last_ticks > first_ticks && last_ns > first_ns
            ? static_cast<double>(last_ns - first_ns) / static_cast<double>(last_ticks - first_ticks)
            : 1;
    for (TraceRecord& event : out_.events) {
      const double since = (static_cast<double>(event.ticks) - static_cast<double>(first_ticks)) * rate;
      const double at = static_cast<double>(first_ns) + since;
      event.ticks = at > 0 && at < 9e18 ? first_ns + static_cast<uint64_t>(static_cast<int64_t>(since)) : 0;
    }
  }

  const std::string_view data_;
  size_t at_ = 0;
  size_t record_at_ = 0;
  Status error_;
  Recording out_;
  Header header_;
  bool has_header_ = false;
  bool ended_ = false;
  std::map<uint32_t, std::string> texts_;
  std::map<uint32_t, TraceRecord> frames_;
  std::vector<std::pair<uint64_t, uint64_t>> clocks_;
};

Result<Recording> parse(std::string_view data, Header* header) {
  Result<Unpacked> unpacked = unpack(data);
  if (!unpacked.ok()) return unpacked.take_status();
  Result<Recording> recording = TraceFileReader(unpacked->bytes).read(header);
  if (!recording.ok() && !unpacked->missing.empty() && unpacked->bytes.empty())
    return Status::invalid_argument("not a trace, or nothing of it was written: " + unpacked->missing);
  if (recording.ok()) recording->missing = std::move(unpacked->missing);
  return recording;
}

// What lives at the beginning of the newer part is known from the older. What was dropped the newer counts
// from the program's beginning.
void join(Recording& older, Recording& newer) {
  const auto begin = std::find_if(newer.events.begin(), newer.events.end(),
                                  [](const TraceRecord& event) { return event.kind != TraceKind::kLive; });
  const auto first_mark = older.marks.size();
  for (auto event = begin; event != newer.events.end(); ++event) {
    if (event->kind == TraceKind::kMark) event->address += first_mark;
  }
  newer.events.erase(newer.events.begin(), begin);
  newer.events.insert(newer.events.begin(), older.events.begin(), older.events.end());
  newer.marks.insert(newer.marks.begin(), older.marks.begin(), older.marks.end());
}

Result<Recording> with_path(const std::string& path, Result<Recording> recording) {
  if (!recording.ok())
    return Status(recording.status().code(), fmt::format("{}: {}", path, recording.status().text()));
  recording->path = path;
  return recording;
}

}  // namespace

bool is_trace_file(std::string_view data) {
  return data.starts_with(kZstdMagic);
}

Result<Recording> parse_trace_file(std::string_view data) {
  Header header;
  return parse(data, &header);
}

Result<Recording> read_recording(const std::string& path, const SnapshotOptions& options) {
  auto data = read_file(path);
  if (!data.ok()) return data.take_status();
  if (!is_trace_file(data.value())) return with_path(path, parse_snapshot_recording(data.value(), options));
  Header header;
  Result<Recording> recording = with_path(path, parse(data.value(), &header));
  if (!recording.ok() || header.part == 0) return recording;
  auto older_data = read_file(path + ".1");
  if (!older_data.ok()) return recording;
  Header older_header;
  Result<Recording> older = parse(older_data.value(), &older_header);
  if (older.ok() && older_header.run == header.run && older_header.part + 1 == header.part) {
    join(older.value(), recording.value());
  }
  return recording;
}

}  // namespace spillway
