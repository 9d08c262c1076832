#include "estimator/gpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>

#include "estimator/inputs/nearest.h"
#include "stats/size.h"

namespace spillway::estimator {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
// No machine has more behind one device.
constexpr double kMostBytes = 16384 * kGiB;

// Where several were seen, the smallest: drivers and error correction differ by some percent. Of one name the
// first is what the bare name ("a100") is taken for.
struct Size {
  const char* name;
  double gib;  // what cudaMemGetInfo and PyTorch's error messages call the total
  const char* source;
};
constexpr const char* kOwn = "docs/hardware, cuDeviceTotalMem";
constexpr const char* kMessages = "PyTorch's out-of-memory messages in public repositories";
constexpr std::array<Size, 31> kSizes = {
    {{"a100-80", 79.14, kMessages},
     {"a100-40", 39.39, kMessages},
     {"h100-80", 85017493504 / kGiB, kOwn},
     {"h100-94", 93.02, kMessages},
     {"h20", 95.00, kMessages},
     {"h200", 150109880320 / kGiB, kOwn},
     {"gh200", 94.50, kMessages},
     {"b200", 178.35, kMessages},
     {"gb200", 184.31, kMessages},
     {"l4", 22.03, "evo2, issue 190"},
     {"l40", 44.39, kMessages},
     {"l40s", 44.39, kMessages},
     {"a10", 22.05, kMessages},
     {"a10g", 22.05, kMessages},
     {"a30", 23.53, "RB-Modulation, issue 5"},
     {"a40", 44.34, kMessages},
     {"t4", 14.56, "CatVTON, issue 133"},
     {"v100-16", 15.75, kMessages},
     {"v100-32", 31.73, "LlamaFactory, issue 182"},
     {"a4000", 15.61, "VGGT-Long, issue 6"},
     {"a6000", 47.41, kMessages},
     {"6000ada", 47.37, kMessages},
     {"pro6000", 94.97, kMessages},
     {"rtx2080ti", 10.73, "GPT2-Chinese, issue 104"},
     {"rtx3090", 23.52, kMessages},
     {"rtx4090", 23.52, "flux-webui, issue 11; Phidias-Diffusion, issue 8"},
     {"rtx5090", 31.36, "TrajectoryCrafter, issue 20"},
     {"mi250x", 63.98, kMessages},
     {"mi300x", 191.69, kMessages},
     {"mi325x", 255.69, kMessages},
     {"mi355x", 287.98, "PyTorch, issue 175431"}}};

// Names are written with these, which tell no two apart.
constexpr std::array<std::string_view, 19> kDecoration = {
    "nvidia",     "geforce",   "tesla",       "quadro", "rtx",     "amd", "instinct",
    "generation", "blackwell", "workstation", "server", "edition", "sxm", "pcie",
    "hbm3e",      "hbm3",      "hbm2e",       "hbm2",   "gb"};

// Names that nvidia-smi has for some, without decoration.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kOtherNames = {
    {{"h100nvl", "h100-94"}, {"h200nvl", "h200"}, {"gh200480", "gh200"}}};

bool is_digit(const std::string& text, size_t at) {
  return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
}

// "sxm4" is a socket, not a size, and "gb" a unit only behind a number.
void drop(std::string& text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
    if (word == "gb" && (at == 0 || !is_digit(text, at - 1))) {
      at += word.size();
    } else {
      text.erase(at, word.size() + (word == "sxm" && is_digit(text, at + 3) ? 1 : 0));
    }
  }
}

std::string plain(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view word : kDecoration) drop(text, word);
  text.erase(std::remove_if(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) == 0; }),
             text.end());
  return text;
}

// The table's rows that `text` may mean.
std::vector<const Size*> meant(const std::string& text) {
  std::string name = plain(text);
  std::vector<const Size*> out;
  if (name.empty()) return out;
  for (const auto& [other, known] : kOtherNames) {
    if (name == other) name = plain(std::string(known));
  }
  for (const Size& size : kSizes) {
    if (text == size.name || plain(size.name) == name) return {&size};
    const std::string_view full = size.name;
    if (full.find('-') != std::string_view::npos && full.substr(0, full.find('-')) == name)
      out.push_back(&size);
  }
  // "a100-80g" is a100-80, where "a10g" is a name of its own.
  if (out.empty() && name.size() > 2 && name.back() == 'g' && is_digit(name, name.size() - 2))
    return meant(name.substr(0, name.size() - 1));
  return out;
}

}  // namespace

std::vector<std::string> gpu_names() {
  std::vector<std::string> out;
  for (const Size& size : kSizes) out.emplace_back(size.name);
  return out;
}

// By what is left of both names without decoration, which are few characters that all count. A number alone
// is that of no GPU, and lacks its unit.
std::string gpu_meant_perhaps(const std::string& text) {
  constexpr size_t kMostEdits = 1;
  const std::string with_unit = text + "GiB";
  const double size = static_cast<double>(parse_size(with_unit).value_or(0));
  if (size > 0 && size <= kMostBytes) return fmt::format("; did you mean '{}'?", with_unit);
  std::vector<std::string> plain_names;
  for (const Size& size : kSizes) plain_names.push_back(plain(size.name));
  const std::string_view found = nearest(plain(text), {plain_names.begin(), plain_names.end()}, kMostEdits);
  for (size_t i = 0; i < kSizes.size(); ++i) {
    if (!found.empty() && plain_names[i] == found) return fmt::format("; did you mean '{}'?", kSizes[i].name);
  }
  return "";
}

Result<GpuMemory> gpu_memory(const std::string& text) {
  // A number alone may be the name of one, and is bytes where it is longer than names are.
  const bool is_number = text.size() < 9 && text.find_first_not_of("0123456789.") == std::string::npos;
  const std::optional<uint64_t> size = is_number ? std::nullopt : parse_size(text);
  const double bytes = static_cast<double>(size.value_or(0));
  if (bytes > 0 && bytes <= kMostBytes) return GpuMemory{text, bytes};
  if (bytes > kMostBytes)
    return Status::invalid_argument(
        fmt::format("--gpu '{}' is not allowed; allowed: sizes up to 16TiB", text));
  if (const std::vector<const Size*> found = meant(text); !found.empty())
    return GpuMemory{found.front()->name, found.front()->gib * kGiB};
  return Status::invalid_argument(
      fmt::format("--gpu '{}' is not known; allowed: {}, or a size such as 24GiB{}", text,
                  fmt::join(gpu_names(), ", "), gpu_meant_perhaps(text)));
}

std::optional<GpuMemory> smallest_gpu(double bytes) {
  std::optional<GpuMemory> out;
  for (const Size& size : kSizes) {
    const double has = size.gib * kGiB;
    if (has >= bytes && (!out || has < out->bytes)) out = GpuMemory{size.name, has};
  }
  return out;
}

std::string gpu_ambiguity(const std::string& text) {
  const std::vector<const Size*> found = meant(text);
  if (found.size() < 2) return {};
  std::vector<std::string_view> others;
  for (size_t i = 1; i < found.size(); ++i) others.emplace_back(found[i]->name);
  return fmt::format("--gpu {}: taken for {}; there is also {}", text, found.front()->name,
                     fmt::join(others, ", "));
}

}  // namespace spillway::estimator
