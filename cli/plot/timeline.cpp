#include "cli/plot/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "cli/size.h"

namespace spillway {
namespace {

constexpr size_t kMostNamed = 7;  // layers that tags or streams get; the rest share one

// Returns which layer a block on the device is in.
class Layers {
 public:
  Layers(const Recording& recording, int device, PlotBy by) : by_(by) {
    if (by == PlotBy::kSize) {
      names_ = {"up to 1 MiB", "to 32 MiB", "to 512 MiB", "larger"};
      return;
    }
    std::map<uint64_t, uint64_t> bytes;
    for (const TraceRecord& event : recording.events) {
      const bool comes = event.kind == TraceKind::kAllocate || event.kind == TraceKind::kLive;
      if (comes && event.device == device) bytes[key_of(event)] += event.requested_bytes;
    }
    std::vector<std::pair<uint64_t, uint64_t>> largest;
    for (const auto& [key, total] : bytes) largest.emplace_back(total, key);
    std::sort(largest.rbegin(), largest.rend());
    for (const auto& [total, key] : largest) {
      if (names_.size() == kMostNamed && largest.size() > kMostNamed + 1) {
        others_ = names_.size();
        names_.emplace_back("others");
        break;
      }
      places_[key] = names_.size();
      names_.push_back(name_of(recording, key));
    }
  }

  const std::vector<std::string>& names() const { return names_; }

  size_t of(const TraceRecord& event) const {
    if (by_ == PlotBy::kSize) {
      const uint64_t mib = (event.requested_bytes + (1 << 20) - 1) >> 20;
      return mib <= 1 ? 0 : mib <= 32 ? 1 : mib <= 512 ? 2 : 3;
    }
    const auto found = places_.find(key_of(event));
    return found == places_.end() ? others_ : found->second;
  }

 private:
  uint64_t key_of(const TraceRecord& event) const { return by_ == PlotBy::kTag ? event.tag : event.stream; }
  std::string name_of(const Recording& recording, uint64_t key) const {
    if (by_ == PlotBy::kStream) return key == 0 ? "default stream" : fmt::format("stream {:#x}", key);
    const auto found = recording.tags.find(static_cast<uint32_t>(key));
    return found == recording.tags.end() ? "no tag" : found->second;
  }

  const PlotBy by_;
  std::vector<std::string> names_;
  std::map<uint64_t, size_t> places_;
  size_t others_ = 0;
};

class TimelineMaker {
 public:
  TimelineMaker(const Recording& recording, int device, PlotBy by, size_t columns)
      : recording_(recording), device_(device), columns_(columns), layers_(recording, device, by) {
    out_.layers = layers_.names();
    pending_ = add_layer("freed, other streams at work");
    placed_ = add_layer("in host memory");
    evicted_ = add_layer("evicted");
  }

  Result<PlotTimeline> make() {
    settle_range();
    now_.assign(out_.layers.size(), 0);
    out_.bytes.assign(out_.layers.size(), std::vector<uint64_t>(columns_, 0));
    out_.reserved_bytes.assign(columns_, 0);
    size_t column = 0;
    uint64_t number = 0;
    bool any = false;
    for (const TraceRecord& event : recording_.events) {
      const size_t at = column_of(out_.has_times ? event.ticks : number);
      ++number;
      if (event.device != device_ && event.kind != TraceKind::kMark) continue;
      for (; column < at; ++column) begin_column(column + 1);
      any = take(event) || any;
      note(column);
    }
    for (; column + 1 < columns_; ++column) begin_column(column + 1);
    if (!any)
      return Status::invalid_argument(fmt::format("device {} has no allocation and no free", device_));
    if (!has_reserved_) out_.reserved_bytes.clear();
    drop_empty_layers();
    const std::string name = std::filesystem::path(recording_.path).filename().string();
    out_.title =
        fmt::format("{}, device {}: at most {} live", name, device_, format_size(out_.peak_live_bytes));
    return std::move(out_);
  }

 private:
  struct Block {
    uint64_t bytes;
    size_t layer;       // where it is
    size_t home_layer;  // on the device
  };

  size_t add_layer(const char* name) {
    out_.layers.emplace_back(name);
    return out_.layers.size() - 1;
  }

  void settle_range() {
    out_.begin_ns = UINT64_MAX;
    for (const TraceRecord& event : recording_.events) {
      if (event.kind == TraceKind::kLive || event.ticks == 0) continue;
      out_.begin_ns = std::min(out_.begin_ns, event.ticks);
      out_.end_ns = std::max(out_.end_ns, event.ticks);
    }
    if (out_.begin_ns < out_.end_ns) return;
    out_.has_times = false;
    out_.begin_ns = 0;
    out_.end_ns = std::max<uint64_t>(recording_.events.size(), 1);
  }

  size_t column_of(uint64_t at) const {
    if (at <= out_.begin_ns) return 0;
    const double share =
        static_cast<double>(at - out_.begin_ns) / static_cast<double>(out_.end_ns - out_.begin_ns);
    return std::min(columns_ - 1, static_cast<size_t>(share * static_cast<double>(columns_)));
  }

  // A column begins with what the one before it ended with.
  void begin_column(size_t column) {
    for (size_t layer = 0; layer < now_.size(); ++layer) out_.bytes[layer][column] = now_[layer];
    out_.reserved_bytes[column] = reserved_;
    column_most_ = live();
  }

  uint64_t live() const {
    uint64_t sum = 0;
    for (const uint64_t bytes : now_) sum += bytes;
    return sum;
  }
  uint64_t live_on_device() const { return live() - now_[placed_] - now_[evicted_]; }

  void note(size_t column) {
    out_.peak_live_bytes = std::max(out_.peak_live_bytes, live_on_device());
    out_.reserved_bytes[column] = std::max(out_.reserved_bytes[column], reserved_);
    if (const uint64_t sum = live(); sum >= column_most_) {
      column_most_ = sum;
      for (size_t layer = 0; layer < now_.size(); ++layer) out_.bytes[layer][column] = now_[layer];
    }
  }

  void move(Block& block, size_t layer) {
    now_[block.layer] -= block.bytes;
    now_[layer] += block.bytes;
    block.layer = layer;
  }

  void end_block(uint64_t address) {
    const auto found = live_.find(address);
    if (found == live_.end()) return;
    now_[found->second.layer] -= found->second.bytes;
    live_.erase(found);
  }

  void move_range(const TraceRecord& event, bool away) {
    for (auto block = live_.lower_bound(event.address);
         block != live_.end() && block->first - event.address < event.requested_bytes; ++block) {
      move(block->second, away ? evicted_ : block->second.home_layer);
    }
  }

  // Tells whether the event is a block's.
  bool take(const TraceRecord& event) {
    switch (event.kind) {
      case TraceKind::kLive:
      case TraceKind::kAllocate:
      case TraceKind::kPlace: {
        end_block(event.address);
        const size_t layer = event.kind == TraceKind::kPlace ? placed_ : layers_.of(event);
        live_[event.address] = {event.requested_bytes, layer, layer};
        now_[layer] += event.requested_bytes;
        return true;
      }
      case TraceKind::kFree:
      case TraceKind::kFreeCompleted:
      case TraceKind::kUnplace:
        end_block(event.address);
        return true;
      case TraceKind::kFreeRequested:
        if (const auto found = live_.find(event.address); found != live_.end()) move(found->second, pending_);
        return true;
      default:
        take_other(event);
        return false;
    }
  }

  void take_other(const TraceRecord& event) {
    switch (event.kind) {
      case TraceKind::kReserve:
        has_reserved_ = true;
        reserved_ += event.requested_bytes;
        reserved_ -= std::min(reserved_, event.block_bytes);
        return;
      case TraceKind::kLimit:
        out_.limit_bytes = event.requested_bytes;
        return;
      case TraceKind::kEvict:
      case TraceKind::kRestore:
        move_range(event, event.kind == TraceKind::kEvict);
        if (event.kind == TraceKind::kEvict) out_.marks.push_back({PlotMark::Kind::kEvict, event.ticks, {}});
        return;
      case TraceKind::kMark:
        out_.marks.push_back({PlotMark::Kind::kMark, event.ticks, recording_.marks[event.address]});
        return;
      case TraceKind::kRetry:
        out_.marks.push_back({PlotMark::Kind::kRetry, event.ticks, {}});
        return;
      case TraceKind::kOutOfMemory:
        out_.marks.push_back({PlotMark::Kind::kOutOfMemory, event.ticks, format_size(event.requested_bytes)});
        return;
      default:
        return;
    }
  }

  void drop_empty_layers() {
    for (size_t layer = out_.layers.size(); layer-- > 0;) {
      const std::vector<uint64_t>& bytes = out_.bytes[layer];
      if (std::any_of(bytes.begin(), bytes.end(), [](uint64_t value) { return value > 0; })) continue;
      out_.layers.erase(out_.layers.begin() + static_cast<std::ptrdiff_t>(layer));
      out_.bytes.erase(out_.bytes.begin() + static_cast<std::ptrdiff_t>(layer));
    }
  }

  const Recording& recording_;
  const int device_;
  const size_t columns_;
  const Layers layers_;
  PlotTimeline out_;
  size_t pending_ = 0;
  size_t placed_ = 0;
  size_t evicted_ = 0;
  std::vector<uint64_t> now_;
  std::map<uint64_t, Block> live_;
  uint64_t reserved_ = 0;
  bool has_reserved_ = false;
  uint64_t column_most_ = 0;
};

}  // namespace

Result<PlotTimeline> make_timeline(const Recording& recording, int device, PlotBy by, size_t columns) {
  return TimelineMaker(recording, device, by, columns).make();
}

}  // namespace spillway
