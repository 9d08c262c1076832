#include "cli/report/flame.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "cli/report/moved_lines.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDeepest = 200;           // frames of a stack, the innermost
constexpr double kNarrowest = 1 / 4000.0;  // of the root
constexpr const char* kUnknown = "unknown: no stack was recorded";

// While it grows: children by name.
struct Growing {
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  std::map<std::string, std::unique_ptr<Growing>> children;

  Growing& child(const std::string& name) {
    std::unique_ptr<Growing>& found = children[name];
    if (!found) found = std::make_unique<Growing>();
    return *found;
  }
};

void sort_by_width(std::vector<FlameNode>& nodes) {
  std::stable_sort(nodes.begin(), nodes.end(), [](const FlameNode& a, const FlameNode& b) {
    return std::max(a.bytes, a.before) > std::max(b.bytes, b.before);
  });
}

FlameNode grown(std::string name, const Growing& from) {
  FlameNode out{std::move(name), from.bytes, 0, from.blocks, {}};
  for (const auto& [child, node] : from.children) out.children.push_back(grown(child, *node));
  sort_by_width(out.children);
  return out;
}

// Names from the entry of the program to the allocation; what says nothing is left out, and what says the
// same as its caller.
std::vector<std::string> path_of(const Stacks& stacks, uint32_t stack, FlameBy by) {
  std::vector<std::string> out;
  const std::vector<uint32_t>& frames = stacks.frames_of(stack);
  for (size_t i = std::min(frames.size(), kDeepest); i-- > 0;) {
    const ListedFrame& frame = stacks.frame(frames[i]);
    std::string name = by == FlameBy::kStack ? frame.text() : frame.module();
    if (name.empty() || (!out.empty() && out.back() == name)) continue;
    out.push_back(std::move(name));
  }
  if (out.empty()) out.emplace_back(kUnknown);
  return out;
}

std::vector<std::string> names_of(const std::vector<FlameNode>& nodes) {
  std::vector<std::string> out;
  for (const FlameNode& node : nodes) out.push_back(node.name);
  return out;
}

// The same node of both, by the name that it has now. What is in one alone comes with an empty node.
FlameNode change_of(const FlameNode& before, const FlameNode& after) {
  const FlameNode none;
  FlameNode out{after.name.empty() ? before.name : after.name, after.bytes, before.bytes, after.blocks, {}};
  for (const Match& match : match_lines(names_of(before.children), names_of(after.children))) {
    out.children.push_back(change_of(match.before ? before.children[*match.before] : none,
                                     match.after ? after.children[*match.after] : none));
  }
  sort_by_width(out.children);
  return out;
}

Json node_json(const FlameNode& node, double least) {
  Json children = Json::array();
  FlameNode rest;
  size_t narrow = 0;
  for (const FlameNode& child : node.children) {
    if (static_cast<double>(std::max(child.bytes, child.before)) >= least) {
      children.push_back(node_json(child, least));
      continue;
    }
    ++narrow;
    rest.bytes += child.bytes;
    rest.before += child.before;
    rest.blocks += child.blocks;
  }
  if (narrow > 0) {
    rest.name = fmt::format("{} narrow ones", narrow);
    children.push_back(node_json(rest, least));
  }
  return {{"name", node.name},
          {"bytes", node.bytes},
          {"before", node.before},
          {"blocks", node.blocks},
          {"children", std::move(children)}};
}

}  // namespace

FlameNode flame_of(const RankReport& report, FlameBy by) {
  const Moment& live = report.live();
  const Stacks none;
  const Stacks& stacks = report.view.stacks ? *report.view.stacks : none;
  std::unordered_map<uint32_t, std::pair<uint64_t, uint64_t>> by_stack;  // bytes, blocks
  for (const SegmentView& segment : live.segments) {
    for (const BlockView& block : segment.blocks) {
      if (block.state == BlockState::kInactive) continue;
      auto& [bytes, blocks] = by_stack[block.stack < stacks.size() ? block.stack : 0];
      bytes += block.requested_bytes;
      ++blocks;
    }
  }
  Growing root;
  for (const auto& [stack, sums] : by_stack) {
    Growing* at = &root;
    const auto add = [&, sums = sums](Growing& node) {
      node.bytes += sums.first;
      node.blocks += sums.second;
    };
    add(*at);
    for (const std::string& name : path_of(stacks, stack, by)) add(*(at = &at->child(name)));
  }
  return grown(live.name == "now" ? "all that is live" : "all that is live at the peak", root);
}

FlameNode flame_of_change(const FlameNode& before, const FlameNode& after) {
  return change_of(before, after);
}

Json flame_json(const FlameNode& root) {
  return node_json(root, kNarrowest * static_cast<double>(std::max(root.bytes, root.before)));
}

}  // namespace spillway
