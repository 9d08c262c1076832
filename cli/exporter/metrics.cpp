#include "cli/exporter/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "cli/seconds.h"
#include "include/spillway/offload.h"
#include "stats/prometheus.h"

namespace spillway {
namespace {

using Type = PrometheusText::Type;
using Labels = PrometheusText::Labels;

struct ShownDevice {
  Labels labels;
  const LiveDevice* device;
};

struct ShownProcess {
  Labels labels;
  const LiveReading* page;
  std::vector<ShownDevice> devices;
};

std::string process_name(const LiveReading& page) {
  return page.life == LiveLife::kElsewhere
             ? fmt::format("{}@{}", page.process.pid, page.process.pid_namespace)
             : fmt::format("{}", page.process.pid);
}

std::vector<ShownProcess> living(const LiveListing& listing) {
  std::vector<ShownProcess> out;
  std::set<std::string> names;
  for (const LiveReading& page : listing.pages) {
    if (page.life == LiveLife::kEnded || !names.insert(process_name(page)).second) continue;
    ShownProcess process{{{"pid", process_name(page)}, {"rank", fmt::format("{}", page.rank)}}, &page, {}};
    std::set<int64_t> ordinals;
    for (const LiveRow& row : page.devices) {
      if (!ordinals.insert(row.now.ordinal).second) continue;
      Labels labels = process.labels;
      labels.emplace_back("device", fmt::format("{}", row.now.ordinal));
      process.devices.push_back({std::move(labels), &row.now});
    }
    out.push_back(std::move(process));
  }
  return out;
}

Labels with(Labels labels, std::initializer_list<std::pair<std::string, std::string>> more) {
  labels.insert(labels.end(), more.begin(), more.end());
  return labels;
}

void add_states(PrometheusText& text, const LiveListing& listing) {
  text.family("spillway_processes", Type::kGauge, "Processes with a live page, by their state");
  for (const LiveLife life :
       {LiveLife::kRunning, LiveLife::kStopped, LiveLife::kEnded, LiveLife::kElsewhere}) {
    const auto count = std::count_if(listing.pages.begin(), listing.pages.end(),
                                     [&](const LiveReading& page) { return page.life == life; });
    text.sample({{"state", life_name(life)}}, int64_t{count});
  }
  text.family("spillway_unreadable_pages", Type::kGauge, "Live pages that are damaged or of another version");
  text.sample({}, static_cast<int64_t>(listing.problems.size()));
}

void add_processes(PrometheusText& text, const std::vector<ShownProcess>& processes) {
  text.family("spillway_process_info", Type::kGauge, "The program and its library");
  for (const ShownProcess& process : processes) {
    text.sample(with(process.labels,
                     {{"program", process.page->program}, {"version", process.page->library_version}}),
                int64_t{1});
  }
  text.family("spillway_process_start_time_seconds", Type::kGauge, "When the process first used a device");
  for (const ShownProcess& process : processes) text.sample(process.labels, seconds(process.page->began_ns));
  text.family("spillway_process_seen_time_seconds", Type::kGauge, "When the process last wrote its counters");
  for (const ShownProcess& process : processes)
    text.sample(process.labels, seconds(process.page->written_ns));
}

void add_devices(PrometheusText& text, const std::vector<ShownProcess>& processes) {
  text.family("spillway_device_info", Type::kGauge, "The device");
  for (const ShownProcess& process : processes) {
    for (const ShownDevice& shown : process.devices) {
      text.sample(with(shown.labels, {{"name", shown.device->name}, {"uuid", shown.device->uuid}}),
                  int64_t{1});
    }
  }
  text.family("spillway_device_memory_bytes", Type::kGauge, "Memory of the device, whoever has it");
  for (const ShownProcess& process : processes) {
    for (const ShownDevice& shown : process.devices)
      text.sample(shown.labels, static_cast<double>(shown.device->total_bytes));
  }
}

std::vector<PrometheusPinned> pinned_of(const std::vector<ShownProcess>& processes) {
  std::vector<PrometheusPinned> out;
  for (const ShownProcess& process : processes) {
    if (process.page->pinned.has_value()) out.push_back({process.labels, *process.page->pinned});
  }
  return out;
}

std::vector<PrometheusTiers> tiers_of(const std::vector<ShownProcess>& processes) {
  std::vector<PrometheusTiers> out;
  for (const ShownProcess& process : processes) {
    for (const ShownDevice& shown : process.devices) {
      if (shown.device->has_tiers != 0) out.push_back({shown.labels, shown.device->tiers});
    }
  }
  return out;
}

}  // namespace

std::string metrics_text(const LiveListing& listing) {
  const std::vector<ShownProcess> processes = living(listing);
  std::vector<PrometheusDevice> devices;
  for (const ShownProcess& process : processes) {
    for (const ShownDevice& shown : process.devices) {
      PrometheusDevice device{shown.labels, {}};
      static_cast<spw_stats&>(device.stats) = shown.device->stats;
      devices.push_back(std::move(device));
    }
  }
  PrometheusText text;
  add_states(text, listing);
  add_processes(text, processes);
  add_pinned_stats(text, pinned_of(processes));
  add_devices(text, processes);
  add_device_stats(text, devices);
  add_tier_stats(text, tiers_of(processes));
  return text.text();
}

}  // namespace spillway
