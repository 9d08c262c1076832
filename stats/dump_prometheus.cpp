#include "stats/dump_prometheus.h"

#include <fmt/format.h>

#include "stats/prometheus.h"

namespace spillway {
namespace {

using Type = PrometheusText::Type;
using Labels = PrometheusText::Labels;

struct Sampled {
  Labels labels;
  const Dump* dump;
  const DumpDevice* device;
};

Labels labels_of(const Dump& dump) {
  return {{"pid", fmt::format("{}", dump.process_id)}, {"rank", fmt::format("{}", dump.rank)}};
}

std::vector<Sampled> rows_of(const std::vector<Dump>& dumps) {
  std::vector<Sampled> out;
  for (const Dump& dump : dumps) {
    for (const DumpDevice& device : dump.devices) {
      out.push_back({labels_of(dump), &dump, &device});
      out.back().labels.emplace_back("device", fmt::format("{}", device.ordinal));
    }
  }
  return out;
}

// One gauge of every device that has it; `value` answers an optional.
template <typename Value>
void add(PrometheusText& text, const std::vector<Sampled>& rows, const char* name, const char* help,
         Value value) {
  text.family(name, Type::kGauge, help);
  for (const Sampled& row : rows) {
    if (const std::optional<uint64_t> bytes = value(*row.device))
      text.sample(row.labels, static_cast<int64_t>(*bytes));
  }
}

void add_devices(PrometheusText& text, const std::vector<Sampled>& rows) {
  text.family("spillway_device_info", Type::kGauge, "The library and the device");
  for (const Sampled& row : rows) {
    Labels labels = row.labels;
    labels.insert(
        labels.end(),
        {{"name", row.device->name}, {"uuid", row.device->uuid}, {"version", row.dump->library_version}});
    text.sample(labels, int64_t{1});
  }
  using Bytes = std::optional<uint64_t>;
  add(text, rows, "spillway_device_memory_bytes", "Memory of the device, whoever has it",
      [](const DumpDevice& device) { return Bytes(device.total_bytes); });
  add(text, rows, "spillway_device_free_bytes", "Memory that the driver calls free",
      [](const DumpDevice& device) { return device.free_bytes; });
  add(text, rows, "spillway_other_bytes", "Memory of other processes, contexts and libraries",
      [](const DumpDevice& device) { return device.other_bytes(); });
  text.family("spillway_external_fragmentation_ratio", Type::kGauge,
              "Share of the unused bytes outside of the largest free range");
  for (const Sampled& row : rows) text.sample(row.labels, row.device->fragmentation());
}

}  // namespace

std::string prometheus_text(const std::vector<Dump>& dumps) {
  const std::vector<Sampled> rows = rows_of(dumps);
  if (rows.empty()) return "";
  std::vector<PrometheusDevice> devices;
  std::vector<PrometheusTiers> tiers;
  for (const Sampled& row : rows) {
    devices.push_back({row.labels, row.device->stats});
    if (row.device->tiers) tiers.push_back({row.labels, row.device->tiers->stats});
  }
  std::vector<PrometheusPinned> pinned;
  for (const Dump& dump : dumps) {
    if (dump.pinned && !dump.devices.empty()) pinned.push_back({labels_of(dump), *dump.pinned});
  }
  PrometheusText text;
  add_devices(text, rows);
  add_device_stats(text, devices);
  add_pinned_stats(text, pinned);
  add_tier_stats(text, tiers);
  return text.text();
}

}  // namespace spillway
