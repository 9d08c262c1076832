// Says what a change of the configuration does to what exists already.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "abi/machine_limits.h"
#include "abi/process.h"
#include "stats/host_memory.h"

namespace spillway {
namespace {

// Tells whether these are the options that options.inc calls run-time writable, in its order.
template <typename Options>
constexpr bool are_run_time(const Options& options) {
  size_t next = 0;
#define SPW_OPTION(option, Type, fallback, allowed, since, run_time, help)         \
  if (run_time) {                                                                  \
    if (next == std::size(options) || options[next].name != #option) return false; \
    ++next;                                                                        \
  }
#include "abi/options.inc"
#undef SPW_OPTION
  return next == std::size(options);
}

bool differs(const Config& before, const Config& after, std::string_view name) {
  return before.value(name).value() != after.value(name).value();
}

}  // namespace

std::span<const Process::RunTimeOption> Process::run_time_options() {
  static constexpr RunTimeOption kOptions[] = {
      {.name = "limit",
       .set_on_device = [](Arena& arena, const Config& config,
                           uint64_t bytes) { return arena.set_limit(config.limit.of(bytes)); }},
      {.name = "soft_limit",
       .set_on_device = [](Arena& arena, const Config& config,
                           uint64_t bytes) { return arena.set_soft_limit(config.soft_limit.of(bytes)); }},
      {.name = "reserve",
       .set_on_device =
           [](Arena& arena, const Config& config, uint64_t bytes) {
             Status status = arena.set_reserve(config.reserve.of(bytes));
             return status.ok() ? arena.set_headroom(config.headroom_of(bytes)) : status;
           }},
      {.name = "slack",
       .set_on_device = [](Arena& arena, const Config& config,
                           uint64_t /*bytes*/) { return arena.set_slack(config.slack.percent); }},
      {.name = "pinned_limit",
       .set_on_pinned = [](PinnedArena& arena, const Config& config,
                           uint64_t bytes) { arena.set_most_bytes(config.pinned_limit.of(bytes)); }},
      {.name = "pinned_ahead", .follow = &Process::follow_pinned_ahead},
      {.name = "evict_above"},  // at the next idle phase
      {.name = "evict_below"},
      {.name = "dump_redact"},  // in the next dump
  };
  static_assert(are_run_time(kOptions), "each option that may change at run time says what its change does");
  return kOptions;
}

Status Process::configure(const char* text) {
  const Lock lock(mutex_);
  load_config();
  Config changed = config_;
  const std::vector<std::string> complaints = changed.apply(text, "spw_conf_set");
  if (!complaints.empty()) return Status::config(complaints.front());

  bool in_use = false;
  if (owned_allocator_ != nullptr) owned_allocator_->for_each([&](Arena&) { in_use = true; });
  if (in_use) {
    if (Status status = check_in_use(changed); !status.ok()) return status;
    if (Status status = set_on_devices(changed); !status.ok()) return status;
  }
  if (PinnedBlocks* blocks = existing_pinned(); blocks != nullptr) {
    // Whatever changes: a share is of what the host has now, and what was refused may be had now.
    const uint64_t host_bytes = read_host_memory().total_bytes;
    for (const RunTimeOption& option : run_time_options())
      if (option.set_on_pinned != nullptr) option.set_on_pinned(blocks->arena(), changed, host_bytes);
    blocks->arena().forget_refusals();
  }
  const Config before = std::exchange(config_, std::move(changed));
  Status status;
  for (const RunTimeOption& option : run_time_options()) {
    if (option.follow != nullptr && status.ok() && differs(before, config_, option.name))
      status = (this->*option.follow)();
  }
  return status;
}

Status Process::check_in_use(const Config& changed) {
  const std::vector<std::string> fixed = fixed_differences(config_, changed);
  if (!fixed.empty()) {
    return Status::invalid_state(
        fmt::format("option '{}' can be set until a device is first used", fixed.front()));
  }
  const std::optional<std::string> mistake =
      beyond_devices(config_, changed, [this]() SPW_REQUIRES(mutex_) { return largest_device_bytes(); });
  return mistake.has_value() ? Status::config("spw_conf_set: " + *mistake) : Status();
}

Status Process::set_on_devices(const Config& changed) {
  Status status;
  owned_allocator_->for_each([&](Arena& arena) {
    mutex_.assert_held();  // for_each() calls this at once
    Result<uint64_t> total = total_bytes(arena.device());
    Status set = total.ok() ? Status() : total.take_status();
    for (const RunTimeOption& option : run_time_options()) {
      if (set.ok() && option.set_on_device != nullptr && differs(config_, changed, option.name))
        set = option.set_on_device(arena, changed, total.value());
    }
    if (!set.ok() && status.ok()) status = std::move(set);
  });
  return status;
}

Status Process::follow_pinned_ahead() {
  if (tiers_.empty()) return {};
  return pin_ahead(*owned_allocator_->existing(tiers_.begin()->first));
}

}  // namespace spillway
