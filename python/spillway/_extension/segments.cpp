#include "segments.h"

#include <algorithm>

#include "calls.h"

namespace spillway_torch {

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
  std::sort(segments.begin(), segments.end(),
            [](const Segment& a, const Segment& b) { return a.address < b.address; });
  return segments;
}

bool holds(const Segments& segments, uint64_t address, uint64_t bytes) {
  const auto behind =
      std::upper_bound(segments.begin(), segments.end(), address,
                       [](uint64_t wanted, const Segment& segment) { return wanted < segment.address; });
  return behind != segments.begin() && address + bytes <= std::prev(behind)->end();
}

Segments difference(const Segments& segments, const Segments& others) {
  Segments parts;
  auto first = others.begin();
  for (const Segment& segment : segments) {
    uint64_t begin = segment.address;
    const auto add_until = [&](uint64_t end) {
      if (begin < end) parts.push_back({begin, end - begin, segment.stream, segment.pool});
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

}  // namespace spillway_torch
