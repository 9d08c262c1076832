#include "holders.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

namespace spillway::holders {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(letter));
      out += code;
    } else {
      out += letter;
    }
  }
  return out + "\"";
}

// Lists each line of a program once, of many stacks.
class Lines {
 public:
  // Answers the number of the stack.
  size_t add(const Origin& origin) {
    auto* stack = dynamic_cast<torch::CapturedTraceback*>(origin.stack.get());
    if (stack == nullptr) return SIZE_MAX;
    stacks_.push_back(stack);
    return stacks_.size() - 1;
  }
  void name() { named_ = torch::symbolize(stacks_); }
  std::vector<uint64_t> stack(size_t number) const {
    return number == SIZE_MAX ? std::vector<uint64_t>{} : named_.tracebacks.at(number);
  }
  std::string json() const {
    std::string out = "[";
    for (const auto& frame : named_.all_frames) {
      if (out.size() > 1) out += ",";
      out += "[" + quoted(frame.filename) + "," + std::to_string(frame.lineno) + "," +
             quoted(frame.funcname) + "]";
    }
    return out + "]";
  }

 private:
  std::vector<torch::CapturedTraceback*> stacks_;
  torch::SymbolizedTracebacks named_;
};

std::string list(const std::vector<uint64_t>& numbers) {
  std::string out = "[";
  for (const uint64_t number : numbers) out += (out.size() > 1 ? "," : "") + std::to_string(number);
  return out + "]";
}

std::string origin_json(const std::vector<uint64_t>& stack, const Origin& origin, uint64_t number) {
  return "\"stack\":" + list(stack) + ",\"node\":" + quoted(origin.node == nullptr ? "" : *origin.node) +
         ",\"in_optimizer\":" + (origin.in_optimizer ? "true" : "false") +
         ",\"steps\":" + std::to_string(origin.steps) + ",\"number\":" + std::to_string(number);
}

// Blocks of one origin and kind.
struct Sum {
  const Block* first = nullptr;
  uint64_t bytes = 0;
  uint64_t blocks = 0;

  void add(const Block& block) {
    if (first == nullptr || block.number < first->number) first = &block;
    bytes += block.bytes;
    ++blocks;
  }
};

}  // namespace

bool Device::add(uint64_t address, uint64_t bytes, Origin origin) {
  remove(address);  // that it went was not said
  Block block{bytes, ++count_, Kind::kOther, std::move(origin)};
  bytes_ += bytes;
  const bool is_peak = bytes_ > peak_;
  if (is_peak) {
    peak_ = bytes_;
    peak_block_ = block;
    gone_.clear();
  }
  live_[address] = std::move(block);
  return is_peak;
}

void Device::remove(uint64_t address) {
  const auto found = live_.find(address);
  if (found == live_.end()) return;
  bytes_ -= found->second.bytes;
  if (found->second.number <= peak_block_.number) gone_.push_back(std::move(found->second));
  live_.erase(found);
}

void Device::mark(uint64_t address, Kind kind) {
  const auto found = live_.find(address);
  if (found != live_.end()) found->second.kind = kind;
}

Peak Device::peak() const {
  Peak peak{peak_, peak_block_, gone_};
  for (const auto& [address, block] : live_) {
    if (block.number <= peak_block_.number) peak.blocks.push_back(block);
  }
  return peak;
}

std::string told(const Peak& peak) {
  Lines lines;
  std::vector<size_t> stacks;
  stacks.reserve(peak.blocks.size());
  for (const Block& block : peak.blocks) stacks.push_back(lines.add(block.origin));
  const size_t of_last = lines.add(peak.last.origin);
  lines.name();

  std::map<std::tuple<std::vector<uint64_t>, const std::string*, Kind, bool>, Sum> sums;
  for (size_t i = 0; i < peak.blocks.size(); ++i) {
    const Block& block = peak.blocks[i];
    sums[{lines.stack(stacks[i]), block.origin.node, block.kind, block.origin.in_optimizer}].add(block);
  }
  std::string rows;
  for (const auto& [key, sum] : sums) {
    rows += std::string(rows.empty() ? "" : ",") + "{" +
            origin_json(std::get<0>(key), sum.first->origin, sum.first->number) + ",\"kind\":\"" +
            kKinds[static_cast<size_t>(sum.first->kind)] + "\",\"bytes\":" + std::to_string(sum.bytes) +
            ",\"blocks\":" + std::to_string(sum.blocks) + "}";
  }
  return "{\"bytes\":" + std::to_string(peak.bytes) + ",\"frames\":" + lines.json() + ",\"moment\":{" +
         origin_json(lines.stack(of_last), peak.last.origin, peak.last.number) + "},\"rows\":[" + rows + "]}";
}

}  // namespace spillway::holders
