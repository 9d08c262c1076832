// Lists what `spillway doctor` looks at: each thing probed where it can be, with the reason where it is
// absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

enum class CheckAnswer : uint8_t { kYes, kNo, kUnknown };

struct Check {
  std::string name;  // as in docs/live.md
  CheckAnswer answer = CheckAnswer::kUnknown;
  std::string detail;         // what was found; for a no, why
  std::optional<int> device;  // none: of the machine
};

struct Examination {
  std::vector<Check> checks;
  bool can_serve = false;  // there is a driver, and a device that answers
  int driver_version = 0;  // of CUDA, 13000; 0: there is no driver
};

// The driver, and each device. Takes and gives back some MiB of device memory.
Examination examine_devices();

// Everything else. Writes 1 MiB to the disk at `spill_dir`, or the temporary directory.
// `driver_version`: as of the examination of devices.
std::vector<Check> examine_host(const std::string& spill_dir, int driver_version);

}  // namespace spillway
