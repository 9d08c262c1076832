// Reads Spillway dumps: docs/schema/dump.schema.json.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "cli/report/read.h"
#include "stats/call_site.h"
#include "stats/native_frame.h"

namespace spillway {
namespace {

using Parsed = nlohmann::json;

constexpr size_t kMostJsonBytes = 512 << 20;  // parsed, it takes about ten times as much memory

// Reads members and keeps the first complaint.
class Reader {
 public:
  const std::string& complaint() const { return complaint_; }

  // 0 to 2^63; absent and null are `otherwise`.
  std::optional<uint64_t> count(const Parsed& object, const char* name) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null()) return std::nullopt;
    if (found->is_number_unsigned()) {
      const auto value = found->get<uint64_t>();
      if (value <= uint64_t{INT64_MAX}) return value;
    }
    complain(name, *found, "a whole number from 0 to 2^63");
    return 0;
  }
  uint64_t bytes(const Parsed& object, const char* name) {
    const uint64_t value = count(object, name).value_or(0);
    if (value > kMostViewBytes) complain(name, object[name], "0 to 2^48");
    return std::min(value, kMostViewBytes);
  }
  // Addresses and stream handles use all 64 bits.
  uint64_t handle(const Parsed& object, const char* name) {
    const auto found = object.find(name);
    if (found == object.end()) return 0;
    if (!found->is_number_integer()) complain(name, *found, "a whole number");
    return found->is_number_integer() ? found->get<uint64_t>() : 0;
  }
  std::string text(const Parsed& object, const char* name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  }
  const Parsed& member(const Parsed& object, const char* name) {
    static const Parsed kNone;
    const auto found = object.is_object() ? object.find(name) : object.end();
    return object.is_object() && found != object.end() ? *found : kNone;
  }
  void complain(const char* name, const Parsed& value, const char* allowed) {
    if (!complaint_.empty()) return;
    std::string shown = value.dump(-1, ' ', false, Parsed::error_handler_t::replace);
    if (shown.size() > 40) shown = shown.substr(0, 40) + "...";
    complaint_ = fmt::format("{}: '{}' is not allowed; allowed: {}", name, shown, allowed);
  }

 private:
  std::string complaint_;
};

BlockState state_of(const std::string& name) {
  if (name == "active_allocated") return BlockState::kLive;
  return name == "active_pending_free" || name == "active_awaiting_free" ? BlockState::kPending
                                                                         : BlockState::kInactive;
}

// A stack of the dump, as reports know it.
struct KnownStack {
  uint32_t site = 0;  // index into MemoryView::sites
  uint32_t stack = 0;
};

// Gives the view the dump's stacks; in the dump's order.
std::vector<KnownStack> read_stacks(Reader& reader, const Parsed& listed, MemoryView& view) {
  std::vector<KnownStack> known;
  if (!listed.is_array() && !listed.is_null()) reader.complain("stacks", listed, "a list of stacks");
  if (!listed.is_array() || listed.empty()) return known;
  const auto stacks = std::make_shared<Stacks>();
  std::unordered_map<std::string, uint32_t> numbers;
  for (const Parsed& frames : listed) {
    CallSite site;
    std::vector<uint32_t> kept;
    std::vector<uint32_t> native;
    for (const Parsed& frame : frames) {
      if (!frame.is_object()) continue;
      const std::string function = reader.text(frame, "name");
      const std::string file = reader.text(frame, "filename");
      const auto line = static_cast<int64_t>(reader.count(frame, "line").value_or(0));
      site.add(function, file, line);
      if (is_shown(function, file)) {
        kept.push_back(stacks->frame(function, file, line));
      } else if (is_programs_own(function, file)) {
        native.push_back(stacks->frame(function, file, line));
      }
    }
    KnownStack& out = known.emplace_back();
    out.stack = stacks->stack(kept.empty() ? native : kept);
    if (site.text().empty()) continue;
    const auto [number, is_new] = numbers.try_emplace(site.text(), view.sites.size());
    if (is_new) view.sites.push_back(site.text());
    out.site = number->second;
  }
  view.stacks = stacks;
  return known;
}

class DeviceReader {
 public:
  DeviceReader(Reader& reader, const std::vector<KnownStack>& stacks, MemoryView& view)
      : reader_(reader), stacks_(stacks), view_(view) {}

  Status read(const Parsed& device) {
    view_.device = static_cast<int64_t>(reader_.count(device, "device").value_or(0));
    view_.hardware = reader_.text(device, "name");
    if (const uint64_t bytes = reader_.bytes(device, "total_bytes"); bytes > 0) view_.device_bytes = bytes;
    view_.device_free_bytes = reader_.count(device, "free_bytes");
    view_.other_bytes = reader_.count(device, "other_bytes");
    read_stats(reader_.member(device, "stats"));
    read_tiers(reader_.member(device, "tiers"));
    for (const Parsed& climb : reader_.member(device, "climbs")) read_climb(climb);
    const Parsed& annotations = reader_.member(device, "annotations");
    for (const auto& said : annotations.items()) {
      view_.annotations[said.key()] = static_cast<double>(reader_.bytes(annotations, said.key().c_str()));
    }
    for (const Parsed& segment : reader_.member(device, "segments")) {
      if (Status status = read_segment(segment); !status.ok()) return status;
    }
    if (Status status = settle(view_.segments); !status.ok()) return status;
    compare();
    return {};
  }

 private:
  uint64_t current(const Parsed& stats, const char* name) { return bytes_of(stats, name, "current"); }
  uint64_t peak(const Parsed& stats, const char* name) { return bytes_of(stats, name, "peak"); }
  uint64_t bytes_of(const Parsed& stats, const char* name, const char* member) {
    const Parsed& all = reader_.member(reader_.member(stats, name), "all");
    if (!all.is_object() || !all.contains(member)) {
      reader_.complain(name, all, "a counter with all.current and all.peak");
      return 0;
    }
    return reader_.bytes(all, member);
  }

  void read_stats(const Parsed& stats) {
    if (!stats.is_object()) return reader_.complain("stats", stats, "an object of counters");
    const uint64_t requested = current(stats, "requested_bytes");
    const uint64_t allocated = current(stats, "allocated_bytes");
    const uint64_t active = current(stats, "active_bytes");
    const uint64_t reserved = current(stats, "reserved_bytes");
    const uint64_t split = current(stats, "inactive_split_bytes");
    if (requested > active || allocated > active || active > reserved || split > reserved - active) {
      return reader_.complain(
          "stats", Parsed("counters that contradict each other"),
          "requested and allocated within active, active and inactive_split within reserved");
    }
    // Without blocks, what the pending ones requested is taken for what they have.
    view_.now.pending = std::min(active - allocated, requested);
    view_.now.live = requested - view_.now.pending;
    view_.now.rounding = active - requested;
    view_.now.inactive_split = split;
    view_.now.cached = reserved - active - split;
    view_.reserved_peak_bytes = peak(stats, "reserved_bytes");
    view_.live_peak_bytes = peak(stats, "requested_bytes");
    view_.allocated_peak_bytes = peak(stats, "allocated_bytes");
    view_.split_peak_bytes = peak(stats, "inactive_split_bytes");
    view_.retries = static_cast<int64_t>(reader_.count(stats, "num_alloc_retries").value_or(0));
    view_.ooms = static_cast<int64_t>(reader_.count(stats, "num_ooms").value_or(0));
    view_.limit_bytes = reader_.count(stats, "limit_bytes");
    if (view_.limit_bytes == uint64_t{INT64_MAX}) view_.limit_bytes.reset();
    view_.largest_free_bytes = reader_.count(stats, "largest_free_bytes");
    view_.tiers.host_placed = reader_.bytes(stats, "host_placed_bytes");
    for (const auto& rung : reader_.member(stats, "rungs").items()) {
      if (!rung.value().is_object()) continue;
      view_.rungs.push_back({rung.key(),
                             static_cast<int64_t>(reader_.count(rung.value(), "hits").value_or(0)),
                             static_cast<int64_t>(reader_.count(rung.value(), "time_ns").value_or(0))});
    }
  }

  void read_tiers(const Parsed& tiers) {
    if (!tiers.is_object()) return;
    view_.tiers.host = reader_.bytes(tiers, "region_host_bytes") + reader_.bytes(tiers, "stash_host_bytes");
    view_.tiers.disk = reader_.bytes(tiers, "region_disk_bytes") + reader_.bytes(tiers, "stash_disk_bytes");
    view_.tiers.disk_today = reader_.bytes(tiers, "disk_today_bytes");
    view_.tiers.disk_daily_limit = reader_.count(tiers, "disk_daily_limit_bytes");
    view_.tiers.lasting_error = reader_.count(tiers, "lasting_error").value_or(0);
    for (const Parsed& region : reader_.member(tiers, "regions")) {
      if (!region.is_object()) continue;
      view_.tiers.regions.push_back({reader_.text(region, "tag"), reader_.bytes(region, "device_bytes"),
                                     reader_.bytes(region, "host_bytes"), reader_.bytes(region, "disk_bytes"),
                                     reader_.count(region, "pins").value_or(0)});
    }
  }

  void read_climb(const Parsed& climb) {
    if (!climb.is_object()) return;
    ClimbView out;
    out.time_us =
        static_cast<int64_t>(std::min(reader_.count(climb, "time_us").value_or(0), uint64_t{1} << 60));
    out.requested_bytes = reader_.bytes(climb, "requested_bytes");
    out.stream = reader_.handle(climb, "stream");
    out.outcome = reader_.text(climb, "outcome");
    for (const auto& rung : reader_.member(climb, "rung_ns").items()) {
      if (rung.value().is_number_unsigned())
        out.rung_ns.emplace_back(rung.key(), static_cast<int64_t>(std::min<uint64_t>(
                                                 rung.value().get<uint64_t>(), uint64_t{INT64_MAX})));
    }
    view_.climbs.push_back(std::move(out));
  }

  Status read_segment(const Parsed& segment) {
    if (!segment.is_object()) return Status::invalid_argument("segments: an entry that is not an object");
    SegmentView out;
    out.address = reader_.handle(segment, "address");
    out.bytes = reader_.bytes(segment, "total_size");
    out.stream = reader_.handle(segment, "stream");
    out.expandable = true;
    const Parsed& pool = reader_.member(segment, "pool");
    if (pool.is_array() && pool.size() == 2 && pool[0].is_number_integer() && pool[1].is_number_integer()) {
      out.pool_first = pool[0].get<uint64_t>();
      out.pool_second = pool[1].get<uint64_t>();
    }
    for (const Parsed& block : reader_.member(segment, "blocks")) {
      if (!block.is_object()) return Status::invalid_argument("blocks: an entry that is not an object");
      out.blocks.push_back({reader_.handle(block, "address"), reader_.bytes(block, "size"),
                            reader_.bytes(block, "requested_size"), state_of(reader_.text(block, "state"))});
      const std::optional<uint64_t> stack = reader_.count(block, "stack");
      if (!stack) continue;
      if (*stack >= stacks_.size()) {
        reader_.complain("stack", block["stack"], "an index into stacks");
        continue;
      }
      out.blocks.back().site = stacks_[*stack].site;
      out.blocks.back().stack = stacks_[*stack].stack;
    }
    view_.segments.push_back(std::move(out));
    return {};
  }

  // The counters say what is reserved; blocks say what the pending ones requested.
  void compare() {
    if (view_.segments.empty()) return;
    const Parts blocks = parts_of(view_.segments);
    const uint64_t requested = view_.now.live + view_.now.pending;
    if (blocks.live + blocks.pending == requested) {
      view_.now.live = blocks.live;
      view_.now.pending = blocks.pending;
    }
    if (blocks.reserved() != view_.now.reserved() || blocks.active() != view_.now.active()) {
      view_.notes.push_back(
          fmt::format("the segments hold {} bytes, {} of them active; the counters say {} and {}",
                      blocks.reserved(), blocks.active(), view_.now.reserved(), view_.now.active()));
    }
  }

  Reader& reader_;
  const std::vector<KnownStack>& stacks_;
  MemoryView& view_;
};

Result<std::vector<MemoryView>> views_of(const Parsed& dump) {
  Reader reader;
  MemoryView common;
  if (const auto rank = reader.count(dump, "rank")) common.rank = static_cast<int64_t>(*rank);
  common.process_id = static_cast<int64_t>(reader.count(dump, "process_id").value_or(0));
  // Kept where its microseconds fit: year 294,247.
  const uint64_t seconds = reader.count(dump, "time_seconds").value_or(0);
  common.time_us = static_cast<int64_t>(std::min(seconds, uint64_t{INT64_MAX} / 1'000'000)) * 1'000'000;
  common.reason = reader.text(dump, "reason");
  common.joins_pages = true;
  for (const auto& option : reader.member(dump, "config").items()) {
    common.config[option.key()] =
        option.value().is_string() ? option.value().get<std::string>() : option.value().dump();
  }
  const std::vector<KnownStack> stacks = read_stacks(reader, reader.member(dump, "stacks"), common);
  std::vector<MemoryView> out;
  for (const Parsed& device : reader.member(dump, "devices")) {
    if (!device.is_object()) return Status::invalid_argument("devices: an entry that is not an object");
    MemoryView view = common;
    if (Status status = DeviceReader(reader, stacks, view).read(device); !status.ok()) {
      return Status::invalid_argument(fmt::format("device {}: {}", view.device, status.text()));
    }
    if (!reader.complaint().empty()) {
      return Status::invalid_argument(fmt::format("device {}: {}", view.device, reader.complaint()));
    }
    // A preloaded program may have used memory that Spillway only counts.
    const bool has_notes = std::any_of(view.annotations.begin(), view.annotations.end(),
                                       [](const auto& annotation) { return annotation.second > 0; });
    if (view.reserved_peak_bytes > 0 || has_notes) out.push_back(std::move(view));
  }
  if (!reader.complaint().empty()) return Status::invalid_argument(reader.complaint());
  if (out.empty()) return Status::invalid_argument("nothing was reserved on any device");
  return out;
}

}  // namespace

Result<std::vector<MemoryView>> parse_dump(const std::string& json) {
  if (json.size() > kMostJsonBytes) {
    return Status::invalid_argument(
        fmt::format("a dump of {} bytes; allowed: up to {}", json.size(), kMostJsonBytes));
  }
  Parsed dump;
  try {
    dump = Parsed::parse(json);
  } catch (const Parsed::parse_error& error) {
    return Status::invalid_argument(
        error.byte >= json.size()
            ? fmt::format("the file ends at byte {} inside of its JSON (truncated?)", json.size())
            : fmt::format("at byte {}: not JSON", error.byte));
  } catch (const Parsed::exception&) {
    return Status::invalid_argument("a number of its JSON is too large");
  }
  if (!dump.is_object() || !dump.contains("schema_version") || !dump.contains("devices") ||
      !dump["devices"].is_array()) {
    return Status::invalid_argument("not a Spillway dump: no schema_version, or no list of devices");
  }
  if (dump["schema_version"] != 1) {
    std::string shown = dump["schema_version"].dump(-1, ' ', false, Parsed::error_handler_t::replace);
    return Status::invalid_argument(
        fmt::format("schema_version: '{}' is not allowed; allowed: 1", shown.substr(0, 40)));
  }
  return views_of(dump);
}

}  // namespace spillway
