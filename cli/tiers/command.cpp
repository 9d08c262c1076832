#include "cli/tiers/command.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/help/values.h"
#include "cli/output.h"
#include "cli/tiers/device.h"
#include "driver/status.h"
#include "include/spillway/offload.h"
#include "include/spillway/pinned.h"
#include "stats/size.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

struct TiersOptions {
  std::string directory;
  std::string bytes = "1GiB";
  std::string output;
  int device = 0;
  bool tune = false;
  bool json = false;
};

std::string option_value(const char* name) {
  std::vector<char> text(4096);
  return spw_conf_get(name, text.data(), text.size(), nullptr) == SPW_OK ? text.data() : "";
}

std::string directory_of(const TiersOptions& asked) {
  if (!asked.directory.empty()) return asked.directory;
  const std::string configured = option_value("spill_dir");
  return configured.empty() ? std::filesystem::temp_directory_path().string() : configured;
}

Result<Json> disk(const TiersOptions& asked, uint64_t bytes, int tune) {
  const std::string directory = directory_of(asked);
  spw_disk_speed speed{};
  speed.size = sizeof(speed);
  const spw_status status = spw_disk_measure(directory.c_str(), bytes, tune, &speed);
  if (status != SPW_OK) return Status(status, spw_last_error());
  const double gib = static_cast<double>(speed.bytes) / (1 << 30);
  return Json{{"directory", directory},
              {"spilled_there", option_value("spill_dir") == directory},
              {"limit", option_value("spill_limit")},
              {"engine", std::string(speed.engine)},
              {"direct", speed.is_direct != 0},
              {"warning", std::string(speed.warning)},
              {"bytes", speed.bytes},
              {"block_bytes", speed.block_bytes},
              {"depth", speed.depth},
              {"write_bytes_per_s", speed.write_bytes_per_s},
              {"read_bytes_per_s", speed.read_bytes_per_s},
              {"write_cpu_s_per_gib", speed.write_cpu_s / gib},
              {"read_cpu_s_per_gib", speed.read_cpu_s / gib}};
}

std::string disk_text(const Json& disk) {
  std::string text = fmt::format(
      "disk    {}: write {:.2f} GB/s, read {:.2f} GB/s; processor {:.3f} and {:.3f} s/GiB\n"
      "        {} operations of {}, {}; {}\n",
      disk["directory"].get<std::string>(), disk["write_bytes_per_s"].get<double>() / kGb,
      disk["read_bytes_per_s"].get<double>() / kGb, disk["write_cpu_s_per_gib"].get<double>(),
      disk["read_cpu_s_per_gib"].get<double>(), disk["depth"].get<uint64_t>(),
      format_bound(disk["block_bytes"].get<uint64_t>()), disk["engine"].get<std::string>(),
      disk["direct"].get<bool>() ? "past the page cache" : "through the page cache");
  if (const auto warning = disk["warning"].get<std::string>(); !warning.empty())
    text += "        " + warning + "\n";
  if (!disk["spilled_there"].get<bool>())
    text += "        nothing is spilled there: spill_dir is not set to it\n";
  return text;
}

int answer(const Json& json, const std::string& text, const TiersOptions& asked) {
  const Status status = write_answer(asked.output, asked.json ? json.dump(2) + "\n" : text);
  return status.ok() ? 0 : complain(status);
}

int run_tiers(const TiersOptions& asked, uint64_t bytes) {
  Result<Json> device_part = device_facts(asked.device, bytes);
  if (!device_part.ok()) return complain(device_part.status());
  Result<Json> disk_part = disk(asked, bytes, asked.tune ? 1 : SPW_TUNE_UNKNOWN);
  if (!disk_part.ok()) return complain(disk_part.status());
  const Json json{{"schema_version", 1},
                  {"device", device_part.value()},
                  {"host", host_facts()},
                  {"disk", disk_part.value()}};
  const std::string text =
      device_text(json["device"]) + host_text(json["host"]) + disk_text(json["disk"]) +
      (asked.tune ? fmt::format("        best here: SPILLWAY_CONF=spill_block:{}KiB,spill_depth:{}\n",
                                json["disk"]["block_bytes"].get<uint64_t>() >> 10,
                                json["disk"]["depth"].get<uint64_t>())
                  : std::string());
  return answer(json, text, asked);
}

int run_bench(const TiersOptions& asked, uint64_t bytes) {
  const std::string directory = directory_of(asked);
  if (spw_conf_set(("spill_dir:" + directory + ",spill_ram_backed:on").c_str()) != SPW_OK) {
    return complain(Status(SPW_ERROR_CONFIG, spw_last_error()));
  }
  Result<Json> device_part = bench_device(asked.device, bytes);
  if (!device_part.ok()) return complain(device_part.status());
  Result<Json> disk_part = disk(asked, bytes, 0);
  if (!disk_part.ok()) return complain(disk_part.status());
  const Json json{{"schema_version", 1}, {"device", device_part.value()}, {"disk", disk_part.value()}};
  return answer(json, bench_text(json["device"]) + disk_text(json["disk"]), asked);
}

CLI::App* add(CLI::App& app, const char* name, const char* help, TiersOptions& asked) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("--dir", asked.directory, "Folder on the disk; else spill_dir, else the temporary one")
      ->type_name("FOLDER")
      ->check(folder_to_read());
  command->add_option("--bytes", asked.bytes, "How much is written and read")
      ->type_name("SIZE")
      ->check(size_of_memory())
      ->capture_default_str();
  command->add_option("--device", asked.device, "Number of the device")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--output", asked.output, "Write the answer to this file instead of stdout")
      ->type_name("FILE")
      ->check(file_to_write());
  command->add_flag("--json", asked.json, "JSON instead of text");
  command->group("Watch a machine");
  return command;
}

}  // namespace

std::function<std::optional<int>()> add_tiers_commands(CLI::App& app) {
  auto asked = std::make_shared<TiersOptions>();
  CLI::App* tiers =
      add(app, "tiers", "Say what memory there is below the device, and how fast it is", *asked);
  tiers->add_flag("--tune", asked->tune,
                  "Find the best block size and depth for the disk again (some seconds)");
  CLI::App* bench = add(app, "bench-tiers",
                        "Measure evicting and restoring a region, beside plain copies and the disk", *asked);
  set_examples(*tiers, {{"How fast are host memory and disk?", "spillway tiers"},
                        {"Of another disk, tuned", "spillway tiers --dir /mnt/nvme --tune"}});
  set_examples(*bench, {{"What would spilling 8 GiB cost?", "spillway bench-tiers --bytes 8GiB"},
                        {"To another disk", "spillway bench-tiers --dir /mnt/nvme"}});
  return [=]() -> std::optional<int> {
    if (!tiers->parsed() && !bench->parsed()) return std::nullopt;
    const std::optional<uint64_t> bytes = parse_size(asked->bytes);
    if (!bytes.has_value()) {
      return complain(Status::invalid_argument(
          fmt::format("--bytes: '{}' is not a size; allowed: such as 512MiB or 1GiB", asked->bytes)));
    }
    return tiers->parsed() ? run_tiers(*asked, *bytes) : run_bench(*asked, *bytes);
  };
}

}  // namespace spillway
