// The package calls these: one tracker of PyTorch's allocator for the process, for all devices.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <map>
#include <mutex>
#include <typeindex>
#include <unordered_map>

#include "holders.h"

extern "C" int Py_AddPendingCall(int (*function)(void*), void* argument);

namespace spillway::holders {
namespace {

using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;

// A peak so many times the one at the last marking asks for another.
constexpr double kGrowth = 1.1;

struct Tracker {
  std::mutex mutex;
  std::map<int, Device> devices;
  std::unordered_map<std::type_index, std::string> nodes;
  std::unordered_map<int, uint64_t> marked_peaks;
  std::atomic<int> in_optimizer{0};
  std::atomic<int> steps{0};
  std::atomic<void (*)()> ask_to_mark{nullptr};
  bool asked = false;
};

// Not destroyed: threads of PyTorch free memory to the end.
Tracker& tracker() {
  static Tracker& one = *new Tracker;
  return one;
}

// By its type, as a node that was written in Python takes Python's lock to say its name.
const std::string* name_of(const torch::autograd::Node* node) {
  if (node == nullptr) return nullptr;
  const auto& type = typeid(*node);
  const auto [found, is_new] = tracker().nodes.try_emplace(std::type_index(type));
  if (is_new) {
    const std::string whole = c10::demangle(type.name());
    found->second = whole.substr(whole.rfind(':') + 1);
  }
  return &found->second;
}

int run_asked(void*) {
  if (const auto ask = tracker().ask_to_mark.load(); ask != nullptr) ask();
  return 0;
}

void on_event(const Entry& entry) {
  Tracker& all = tracker();
  if (entry.action_ == Entry::FREE_REQUESTED) {
    const std::lock_guard lock(all.mutex);
    all.devices[entry.device_].remove(entry.addr_);
  }
  if (entry.action_ != Entry::ALLOC) return;
  const auto node = torch::autograd::get_current_node();
  const std::lock_guard lock(all.mutex);
  Device& device = all.devices[entry.device_];
  const bool is_peak =
      device.add(entry.addr_, entry.size_,
                 {entry.context_, name_of(node.get()), all.in_optimizer.load() != 0, all.steps.load()});
  uint64_t& marked = all.marked_peaks[entry.device_];
  if (is_peak && !all.asked &&
      static_cast<double>(device.peak_bytes()) > kGrowth * static_cast<double>(marked) &&
      all.ask_to_mark.load() != nullptr) {
    all.asked = Py_AddPendingCall(run_asked, nullptr) == 0;
  }
}

}  // namespace
}  // namespace spillway::holders

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

using spillway::holders::Device;
using spillway::holders::Kind;
using spillway::holders::tracker;

// Once, when the devices are in use. `ask_to_mark` is called in Python's main thread, with its lock, where
// the peak has grown since the last marking.
EXPORTED void spillway_holders_start(void (*ask_to_mark)()) {
  tracker().ask_to_mark = ask_to_mark;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(spillway::holders::on_event);
}

EXPORTED void spillway_holders_stop_asking() {
  tracker().ask_to_mark = nullptr;
}

EXPORTED void spillway_holders_in_optimizer(int is_in) {
  tracker().in_optimizer = is_in;
}

EXPORTED void spillway_holders_stepped(int steps) {
  tracker().steps = steps;
}

// Blocks that begin at these addresses, on whatever device.
EXPORTED void spillway_holders_mark(const uint64_t* addresses, uint64_t count, int kind) {
  const std::lock_guard lock(tracker().mutex);
  for (auto& [index, device] : tracker().devices) {
    for (uint64_t i = 0; i < count; ++i) device.mark(addresses[i], static_cast<Kind>(kind));
  }
}

EXPORTED void spillway_holders_marked() {
  const std::lock_guard lock(tracker().mutex);
  tracker().asked = false;
  for (const auto& [index, device] : tracker().devices) tracker().marked_peaks[index] = device.peak_bytes();
}

// Differs where any device has had a new peak.
EXPORTED uint64_t spillway_holders_peaks() {
  const std::lock_guard lock(tracker().mutex);
  uint64_t sum = 0;
  for (const auto& [index, device] : tracker().devices) sum += device.peak_number();
  return sum;
}

// As JSON, which is kept until the next call; NULL where the device was not used. With Python's lock held.
EXPORTED const char* spillway_holders_json(int index) {
  static std::string json;
  spillway::holders::Peak peak;
  {
    const std::lock_guard lock(tracker().mutex);
    peak = tracker().devices[index].peak();
  }
  if (peak.blocks.empty()) return nullptr;
  json = spillway::holders::told(peak);
  return json.c_str();
}

}  // extern "C"
