// Adds what `spillway doctor --probe` asks for: the checks of driver_probe that say which profile a driver
// deserves.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/doctor/checks.h"
#include "driver/status.h"

namespace spillway {

// Says what was found of the driver with one device, the first of its name.
struct Verdict {
  int device = 0;
  std::string device_name;
  std::string driver;                  // see driver_name()
  std::optional<std::string> profile;  // none: not known
  std::string kept_in;                 // a file; empty: nowhere
};

struct Probed {
  std::vector<Check> checks;
  std::vector<Verdict> verdicts;
};

// Probes each kind of device, up to 20 s each, and keeps what is known (verdicts.h). Errors: io (no probe, or
// it does not run), driver.
Result<Probed> probe_devices();

// Reads what a report of driver_probe says: adds its checks, and returns the profile, where enough of them
// answered.
std::optional<std::string> judge(std::string_view report, int device, std::vector<Check>& checks);

}  // namespace spillway
