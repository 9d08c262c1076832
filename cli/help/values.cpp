#include "cli/help/values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "cli/help/described.h"
#include "cli/output.h"
#include "cli/size.h"
#include "estimator/gpus.h"
#include "estimator/inputs/nearest.h"
#include "stats/size.h"

namespace spillway {
namespace {

// Holds what is to be said of the words of this command, once it has an answer.
std::vector<std::string>& notes() {
  static std::vector<std::string> said;
  return said;
}

// A bound that no value is meant to reach is not told.
constexpr int64_t kEndless = 1'000'000;

std::string allowed_instead(const std::string& text, const std::string& allowed) {
  return fmt::format("'{}' is not allowed; allowed: {}", text, allowed);
}

std::string range_words(int64_t least, int64_t most) {
  if (most < kEndless) return fmt::format("{} to {}", least, most);
  return least > 0 ? fmt::format("at least {}", least) : "";
}

template <typename Number>
bool is_within(const std::string& text, Number least, Number most) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end && value >= least && value <= most;
}

}  // namespace

CLI::Validator one_of(const std::vector<std::string>& words) {
  const std::string all = fmt::format("{}", fmt::join(words, ", "));
  return {[words, all](const std::string& text) -> std::string {
            if (std::find(words.begin(), words.end(), text) != words.end()) return "";
            return allowed_instead(text, all) + estimator::did_you_mean(text, {words.begin(), words.end()});
          },
          kOneOf + all};
}

CLI::Validator whole(int64_t least, int64_t most) {
  return {[least, most](const std::string& text) -> std::string {
            if (is_within(text, least, most)) return "";
            return allowed_instead(text, fmt::format("whole numbers from {} to {}", least, most));
          },
          range_words(least, most)};
}

CLI::Validator number(double least, double most) {
  return {[least, most](const std::string& text) -> std::string {
            if (is_within(text, least, most)) return "";
            return allowed_instead(text, fmt::format("numbers from {} to {}", least, most));
          },
          fmt::format("{} to {}", least, most)};
}

CLI::Validator size_of_memory() {
  return {[](const std::string& text) -> std::string {
            return parse_size(text)
                       ? ""
                       : fmt::format("'{}' is not a size; allowed: such as 512MiB, 1.5GiB, 2GB", text);
          },
          ""};
}

CLI::Validator name_of_gpu() {
  return {[](std::string& text) -> std::string {
            // A share is no GPU's name, whichever it resembles: the command says whether it takes one.
            const bool is_share = text.ends_with('%');
            const bool is_size =
                parse_size(text) && text.find_first_not_of("0123456789") != std::string::npos;
            if (is_share || is_size) return "";
            const Result<estimator::GpuMemory> gpu = estimator::gpu_memory(text);
            if (!gpu.ok()) {
              const std::string meant = estimator::gpu_meant_perhaps(text);
              return meant.empty() ? "" : fmt::format("'{}' is no size and no GPU{}", text, meant);
            }
            if (const std::string others = estimator::gpu_ambiguity(text); !others.empty())
              notes().push_back(others.substr(others.find(' ') + 1));
            text = fmt::format("{:.0f}B", std::floor(gpu.value().bytes));
            return "";
          },
          kNamesGpus};
}

CLI::Validator names_of_gpus() {
  return {[](const std::string&) { return std::string(); }, kNamesGpus};
}

CLI::Validator file_to_write() {
  return {[](const std::string& path) -> std::string { return check_folder(path).text(); }, ""};
}

CLI::Validator folder_to_read() {
  return {[](const std::string& path) -> std::string {
            std::error_code error;
            const auto status = std::filesystem::status(path, error);
            if (std::filesystem::is_directory(status)) return "";
            return fmt::format("{}: {}", path,
                               std::filesystem::exists(status) ? "is no folder" : "there is no such folder");
          },
          ""};
}

CLI::Validator goes_with(const std::vector<const CLI::Option*>& others) {
  return {[others](const std::string&) -> std::string {
            std::vector<std::string> names;
            for (const CLI::Option* other : others) {
              if (other->count() > 0) return "";
              names.push_back(other->get_name());
            }
            return fmt::format("goes with {}", fmt::join(names, " or "));
          },
          ""};
}

void say_notes() {
  for (const std::string& note : notes()) std::fprintf(stderr, "spillway: note: %s\n", note.c_str());
  notes().clear();
}

void set_examples(CLI::App& command, const std::vector<std::pair<std::string, std::string>>& examples) {
  std::string footer;
  for (const auto& [text, line] : examples) footer += fmt::format("{}\n{}\n", text, line);
  command.footer(footer);
}

}  // namespace spillway
