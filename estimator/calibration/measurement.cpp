#include "estimator/calibration/measurement.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace spillway::estimator {
namespace {

using Parsed = nlohmann::json;

// Reads counters by name and keeps the first complaint.
class Counters {
 public:
  explicit Counters(const Parsed& stats) : stats_(stats) {}

  // "requested_bytes.all.peak", as one key or as nested objects.
  double bytes(const std::string& name) { return number(name, true); }
  double bytes_if_there(const std::string& name) { return number(name, false); }
  Counter counter(const std::string& name) {
    return {bytes(name + ".all.current"), bytes(name + ".all.peak")};
  }
  Counter counter_or(const std::string& name, const Counter& otherwise) {
    return find(name + ".all.peak") == nullptr ? otherwise : counter(name);
  }
  const std::string& complaint() const { return complaint_; }

 private:
  const Parsed* find(const std::string& name) const {
    if (const auto flat = stats_.find(name); flat != stats_.end()) return &*flat;
    const Parsed* at = &stats_;
    for (size_t start = 0; start <= name.size();) {
      const size_t end = std::min(name.find('.', start), name.size());
      if (!at->is_object()) return nullptr;
      const auto inner = at->find(name.substr(start, end - start));
      if (inner == at->end()) return nullptr;
      at = &*inner;
      start = end + 1;
    }
    return at;
  }

  double number(const std::string& name, bool required) {
    const Parsed* found = find(name);
    if (found == nullptr && !required) return 0;
    if (found != nullptr && found->is_number()) {
      const double value = found->get<double>();
      if (value >= 0 && value < 1e15) return value;
    }
    if (complaint_.empty()) {
      complaint_ = fmt::format("{}: {}; allowed: bytes from 0 to 1e15", name,
                               found == nullptr ? "missing" : "'" + found->dump() + "' is not allowed");
    }
    return 0;
  }

  const Parsed& stats_;
  std::string complaint_;
};

Status read_stats(const Parsed& stats, Measurement& out) {
  Counters counters(stats);
  out.allocated = counters.counter("allocated_bytes");
  // PyTorch before 2.1 does not count requests.
  out.requested = counters.counter_or("requested_bytes", out.allocated);
  out.active = counters.counter("active_bytes");
  out.reserved = counters.counter("reserved_bytes");
  out.inactive_split = counters.counter("inactive_split_bytes");
  out.cached_free_bytes =
      std::max(0.0, out.reserved.current - out.active.current - out.inactive_split.current);
  out.retries = std::llround(counters.bytes_if_there("num_alloc_retries"));
  out.ooms = std::llround(counters.bytes_if_there("num_ooms"));
  if (!counters.complaint().empty()) return Status::invalid_argument(counters.complaint());
  if (out.requested.peak > out.allocated.peak || out.allocated.peak > out.reserved.peak) {
    return Status::invalid_argument(
        "counters contradict each other; allowed: requested, allocated and reserved peaks in this order");
  }
  return {};
}

template <typename Value>
Value value_or(const Parsed& object, const char* key, Value otherwise) {
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  if constexpr (std::is_same_v<Value, std::string>) {
    return found->is_string() ? found->template get<Value>() : otherwise;
  } else {
    return found->is_number() ? found->template get<Value>() : otherwise;
  }
}

void read_blocks(const Parsed& device, Measurement& out) {
  const auto segments = device.find("segments");
  if (segments == device.end() || !segments->is_array()) return;
  for (const Parsed& segment : *segments) {
    if (!segment.is_object() || !segment.contains("blocks")) continue;
    for (const Parsed& block : segment["blocks"]) {
      if (block.is_object() && value_or<std::string>(block, "state", "") != "inactive")
        out.blocks.push_back(value_or<double>(block, "requested_size", 0));
    }
  }
}

Result<Measurement> read_device(const Parsed& dump, const Parsed& device) {
  Measurement out;
  if (!device.is_object() || !device.contains("stats") || !device["stats"].is_object())
    return Status::invalid_argument("devices: an entry without stats");
  out.device = value_or<int64_t>(device, "device", 0);
  if (Status status = read_stats(device["stats"], out); !status.ok()) {
    return Status::invalid_argument(fmt::format("device {}: {}", out.device, status.text()));
  }
  out.hardware = value_or<std::string>(device, "name", "");
  out.memory_bytes = value_or<double>(device, "total_bytes", 0);
  out.rank = value_or<int64_t>(dump, "rank", 0);
  out.process_id = value_or<int64_t>(dump, "process_id", 0);
  out.time_seconds = value_or<int64_t>(dump, "time_seconds", 0);
  if (const auto said = device.find("annotations"); said != device.end() && said->is_object()) {
    for (const auto& [name, bytes] : said->items()) {
      if (bytes.is_number()) out.annotations[name] = bytes.get<double>();
    }
  }
  read_blocks(device, out);
  return out;
}

constexpr const char* kNothing = "nothing was allocated";

Result<std::vector<Measurement>> read_dump(const Parsed& dump) {
  if (const auto version = dump.find("schema_version"); version == dump.end() || *version != 1) {
    return Status::invalid_argument(fmt::format("schema_version: '{}' is not allowed; allowed: 1",
                                                version == dump.end() ? "none" : version->dump()));
  }
  std::vector<Measurement> out;
  for (const Parsed& device : dump["devices"]) {
    Result<Measurement> one = read_device(dump, device);
    if (!one.ok()) return one.take_status();
    if (one->allocated.peak > 0) out.push_back(std::move(one.value()));
  }
  if (out.empty()) return Status::invalid_argument(kNothing);
  return out;
}

}  // namespace

double Measurement::annotation(const std::string& name) const {
  const auto found = annotations.find(name);
  return found == annotations.end() ? 0 : found->second;
}

Result<std::vector<Measurement>> read_counters(const std::string& text) {
  const Parsed root = Parsed::parse(text, nullptr, false);
  if (!root.is_object()) return Status::invalid_argument("not a JSON object");
  if (root.contains("devices") && root["devices"].is_array()) return read_dump(root);
  if (!root.contains("allocated_bytes.all.peak") && !root.contains("allocated_bytes")) {
    return Status::invalid_argument(
        "not known; allowed: a Spillway dump, torch.cuda.memory_stats() as JSON, a PyTorch snapshot");
  }
  Measurement out;
  if (Status status = read_stats(root, out); !status.ok()) return status;
  if (out.allocated.peak == 0) return Status::invalid_argument(kNothing);
  return std::vector<Measurement>{std::move(out)};
}

}  // namespace spillway::estimator
