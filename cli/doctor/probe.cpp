#include "cli/doctor/probe.h"

#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "cli/doctor/verdicts.h"
#include "cli/own_folder.h"
#include "driver/context.h"
#include "driver/driver.h"

namespace spillway {
namespace {

constexpr int kSeconds = 20;
constexpr int kSectionSeconds = 8;

std::string quoted(const std::string& path) {
  std::string text = "'";
  for (const char letter : path) text += letter == '\'' ? "'\\''" : std::string(1, letter);
  return text + "'";
}

// Returns the report. Errors: io.
Result<std::string> run_probe(int device) {
  const std::filesystem::path program = own_folder() / "driver_probe";
  std::error_code error;
  if (!std::filesystem::exists(program, error))
    return Status::io(fmt::format("{} is not there: install Spillway again", program.string()));
  const std::string command = fmt::format(
      "{} --device {} --sections aliasing,aliasing_resident,captured_streams,remap_to_host "
      "--section-seconds {} --total-seconds {}",
      quoted(program.string()), device, kSectionSeconds, kSeconds);
  std::unique_ptr<FILE, int (*)(FILE*)> output(popen(command.c_str(), "r"), pclose);
  if (output == nullptr) return Status::io("driver_probe cannot be started");
  std::string text;
  std::array<char, 4096> part{};
  while (const size_t count = fread(part.data(), 1, part.size(), output.get()))
    text.append(part.data(), count);
  if (pclose(output.release()) != 0) return Status::io("driver_probe failed");
  return text;
}

}  // namespace

Result<Probed> probe_devices() {
  Result<std::shared_ptr<const Driver>> opened = Driver::open();
  if (!opened.ok()) return opened.take_status();
  const Driver& driver = *opened.value();
  int count = 0;
  if (Status status = driver.check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount"); !status.ok())
    return status;
  Probed out;
  for (int i = 0; i < count; ++i) {
    Result<DeviceProperties> device = query_device(driver, i);
    if (!device.ok()) return device.take_status();
    const bool is_known = std::any_of(out.verdicts.begin(), out.verdicts.end(), [&](const Verdict& verdict) {
      return verdict.device_name == device->name;
    });
    if (is_known) continue;
    Result<std::string> report = run_probe(i);
    if (!report.ok()) return report.take_status();
    Verdict verdict{i, device->name, driver_name(driver), judge(report.value(), i, out.checks), ""};
    if (verdict.profile.has_value()) {
      Result<std::string> kept = keep_verdict(verdict.driver, verdict.device_name, *verdict.profile);
      if (!kept.ok()) return kept.take_status();
      verdict.kept_in = std::move(kept.value());
    }
    out.verdicts.push_back(std::move(verdict));
  }
  return out;
}

}  // namespace spillway
