#include "segments.h"

#include <algorithm>

#include "calls.h"

namespace spillway_torch {
namespace {

void sort(Segments& segments) {
  std::sort(segments.begin(), segments.end(),
            [](const Segment& a, const Segment& b) { return a.address < b.address; });
}

}  // namespace

Segments segments_of(c10::DeviceIndex device) {
  Segments segments;
  const spw_segment_visitor add = [](const spw_segment* segment, void* context) {
    static_cast<Segments*>(context)->push_back({segment->address,
                                                segment->total_bytes,
                                                segment->stream,
                                                {segment->pool.first, segment->pool.second}});
    return 0;
  };
  (void)spw_walk(device, add, &segments);
  sort(segments);
  return segments;
}

const Segment* find(const Segments& segments, uint64_t address) {
  const auto behind =
      std::upper_bound(segments.begin(), segments.end(), address,
                       [](uint64_t wanted, const Segment& segment) { return wanted < segment.address; });
  if (behind == segments.begin() || address >= std::prev(behind)->end()) return nullptr;
  return &*std::prev(behind);
}

bool holds(const Segments& segments, const Segment& bytes) {
  for (uint64_t address = bytes.address; address < bytes.end();) {
    const Segment* segment = find(segments, address);
    if (segment == nullptr || !segment->is_like(bytes)) return false;
    address = segment->end();
  }
  return true;
}

Segments difference(const Segments& segments, const Segments& others) {
  Segments parts;
  auto first = others.begin();
  for (const Segment& segment : segments) {
    uint64_t begin = segment.address;
    const auto add_until = [&](uint64_t end) {
      if (begin < end) parts.push_back({begin, end - begin, segment.stream, segment.pool, segment.context});
    };
    while (first != others.end() && first->end() <= begin) ++first;
    for (auto other = first; other != others.end() && other->address < segment.end(); ++other) {
      if (!other->is_like(segment)) continue;
      add_until(other->address);
      begin = std::max(begin, other->end());
    }
    add_until(segment.end());
  }
  return parts;
}

Segments together(Segments segments, const Segments& others) {
  segments.insert(segments.end(), others.begin(), others.end());
  sort(segments);
  return segments;
}

}  // namespace spillway_torch
