// Counters in Prometheus' text exposition format 0.0.4, names and units by Prometheus' conventions: base
// units (bytes, seconds) at the end of a name, `_total` behind what only grows, a HELP and a TYPE line before
// each family, and all samples of a family together. (prometheus.io/docs/practices/naming,
// prometheus.io/docs/instrumenting/exposition_formats.)
//
// The families come from the lists in include/spillway/stats.h: a counter without a name here does not
// compile. A gauge that is kept for the small and the large pool has a label `pool`, and no sample for their
// sum. Peaks and running totals are of the device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "include/spillway/offload.h"
#include "include/spillway/pinned.h"
#include "stats/device_stats.h"

namespace spillway {

// Writes families one after the other. Not thread-shared.
class PrometheusText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  enum class Type : uint8_t { kCounter, kGauge };

  // Begins a family. `name` is [a-z_]+ and new in this text; `help` is one line.
  void family(std::string_view name, Type type, std::string_view help);
  // One value of the family begun last. Label values may hold any bytes; those beyond ASCII
  // become question marks.
  void sample(const Labels& labels, int64_t value);
  void sample(const Labels& labels, double value);

  const std::string& text() const { return text_; }

 private:
  void begin_sample(const Labels& labels);

  std::string name_;
  std::string text_;
};

struct PrometheusDevice {
  PrometheusText::Labels labels;  // what tells this device's samples from the others'
  DeviceStats stats;
};

// Every counter of every device.
void add_device_stats(PrometheusText& text, const std::vector<PrometheusDevice>& devices);

struct PrometheusTiers {
  PrometheusText::Labels labels;  // of the device, as above
  spw_tier_stats stats;
};

// Adds what left the devices that ever spilled.
void add_tier_stats(PrometheusText& text, const std::vector<PrometheusTiers>& devices);

struct PrometheusPinned {
  PrometheusText::Labels labels;  // of the process
  spw_pinned_stats stats;
};

// The host memory that processes pinned, of those that did.
void add_pinned_stats(PrometheusText& text, const std::vector<PrometheusPinned>& processes);

}  // namespace spillway
