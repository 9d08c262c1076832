// Holds what `tiers` says of devices and of the host, and what `bench-tiers` measures on a device.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "driver/status.h"

namespace spillway {

constexpr double kGb = 1e9;  // rates are told in GB a second

// With what copies of so many bytes, of a GiB at most, reach. A machine without a driver, or a driver without
// a device, is described as such. Errors: invalid_argument, where there are devices, but not this one.
Result<nlohmann::ordered_json> device_facts(int device, uint64_t bytes);
std::string device_text(const nlohmann::ordered_json& facts);
// Within the limits of the control group that this process runs in.
nlohmann::ordered_json host_facts();
std::string host_text(const nlohmann::ordered_json& facts);

// Evicts and restores a region of `bytes`, beside plain copies to and from pinned memory. Bytes per second.
// Errors: those of the driver and of spw_region_evict.
Result<nlohmann::ordered_json> bench_device(int device, uint64_t bytes);
std::string bench_text(const nlohmann::ordered_json& figures);

}  // namespace spillway
