#include "cli/launch/gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "cli/size.h"
#include "estimator/measured.h"

namespace spillway {

FixedParts fixed_parts(bool has_many_ranks) {
  return {static_cast<uint64_t>(estimator::kContextBytes.value),
          has_many_ranks ? static_cast<uint64_t>(estimator::kCommunicatorBytes.value) : 0};
}

uint64_t capacity_of(const estimator::GpuMemory& gpu, const FixedParts& fixed) {
  // The simulated device has whole pages.
  constexpr uint64_t kPage = uint64_t{2} << 20;
  const auto all = static_cast<uint64_t>(gpu.bytes);
  return all < fixed.bytes() ? 0 : (all - fixed.bytes()) / kPage * kPage;
}

Result<std::vector<estimator::GpuMemory>> gpus_of(const std::string& names, const FixedParts& fixed) {
  std::vector<estimator::GpuMemory> gpus;
  std::istringstream words(names);
  for (std::string name; std::getline(words, name, ',');) {
    Result<estimator::GpuMemory> gpu = estimator::gpu_memory(name);
    if (!gpu.ok()) return gpu.take_status();
    if (capacity_of(gpu.value(), fixed) == 0) {
      return Status::invalid_argument(fmt::format("--gpu '{}' is too small: {} are CUDA's and NCCL's own",
                                                  name, format_size(fixed.bytes())));
    }
    if (const std::string text = estimator::gpu_ambiguity(name); !text.empty())
      std::fprintf(stderr, "spillway: %s\n", text.c_str());
    gpus.push_back(std::move(gpu.value()));
  }
  if (gpus.empty()) return Status::invalid_argument("--gpu names none; such as h100-80,a100-40");
  std::stable_sort(gpus.begin(), gpus.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return gpus;
}

std::string gpus_text(const std::vector<GpuAnswer>& answers) {
  std::string out;
  for (const GpuAnswer& answer : answers) {
    const auto all = static_cast<uint64_t>(answer.gpu.bytes);
    out += fmt::format("  {:<10}{:>13}: {:<9}", answer.gpu.name, format_size(all),
                       answer.verdict ? estimator::verdict_name(*answer.verdict) : "not known");
    if (answer.needed_bytes > 0) out += fmt::format(" needs {}", format_size(answer.needed_bytes));
    if (answer.needed_bytes > 0 && answer.needed_bytes < all)
      out += fmt::format(", {} left", format_size(all - answer.needed_bytes));
    out += "\n";
  }
  return out;
}

nlohmann::json gpus_json(const std::vector<GpuAnswer>& answers) {
  nlohmann::json out = nlohmann::json::array();
  for (const GpuAnswer& answer : answers) {
    nlohmann::json row = {
        {"name", answer.gpu.name},
        {"bytes", static_cast<uint64_t>(answer.gpu.bytes)},
        {"verdict", answer.verdict ? estimator::verdict_name(*answer.verdict) : "NOT KNOWN"}};
    if (answer.needed_bytes > 0) row["needed_bytes"] = answer.needed_bytes;
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace spillway
