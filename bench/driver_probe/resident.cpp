// Finds out whether what is written through one address is read through another by a kernel that was on the
// device before. Each case has a control, which writes and reads through one address and must find no wrong
// word, and each kind of case one that must find some, or the kind proves nothing.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/driver_probe/launch.h"
#include "bench/driver_probe/resident_kernels.h"
#include "bench/driver_probe/sections.h"

namespace spillway::probe {
namespace {

constexpr Shape kReaders = {64, 128};
constexpr uint32_t kReadWords = kReaders.blocks * kReaders.threads;
constexpr uint64_t kWriterNs = 20000;  // so much later than its readers may begin does a writer store
constexpr int kResidentRounds = 200;

// One page at three addresses, and words for kernels to count in.
struct Page {
  explicit Page(const Session& s)
      : session(s),
        handle(require(PhysicalHandle::create(s.driver(), s.device(), s.granule()))),
        written(s, {&handle}),
        read(s, {&handle}),
        third(s, {&handle}),
        words(require(DeviceBlock::allocate(s.driver(), size_t{64} << 10))) {}

  CUdeviceptr value() const { return words.base(); }
  CUdeviceptr ready() const { return words.base() + 4096; }
  CUdeviceptr flag() const { return words.base() + 8192; }
  CUdeviceptr wrong() const { return words.base() + 12288; }  // 64-bit: wrong words, waits given up

  void clear() const {
    session.fill(words.base(), words.bytes(), 0, session.stream(0));
    session.fill(written.base(), written.bytes(), 0, session.stream(0));
    session.wait();
  }
  uint64_t counted(int which) const {
    uint64_t counts[2] = {};
    session.wait();
    session.check(session.driver().cuMemcpyDtoH(counts, wrong(), sizeof counts), "cuMemcpyDtoH");
    return counts[which];
  }

  const Session& session;
  PhysicalHandle handle;
  Mapped written, read, third;
  DeviceBlock words;
};

int rounds_of(const Session& session) {
  return session.has_kernels() ? kResidentRounds : 1;
}

struct DependentCase {
  bool graph;
  bool dependent;
  bool warm;
  bool waits;  // the reader waits for the launch before it
  bool fence;

  std::string name() const {
    return std::string(graph ? "graph" : "stream") + (dependent ? "_dependent" : "") + (warm ? "_warm" : "") +
           (fence ? "_fence" : "") + (waits ? "" : "_without_wait");
  }
};

class Dependents {
 public:
  explicit Dependents(const Page& page)
      : page_(page),
        module_(page.session, kDependentKernels),
        bump_(module_.function("spw_bump")),
        write_(module_.function("spw_late_write")),
        read_(module_.function("spw_late_read")) {}

  uint64_t wrong_words(const DependentCase& each, bool one_address) const {
    page_.clear();
    const CUstream stream = page_.session.stream(0);
    const auto once = [&] { enqueue(each, one_address, stream); };
    if (each.graph) {
      const Graph graph(page_.session, stream, once);
      for (int i = 0; i < rounds_of(page_.session); ++i) graph.launch(stream);
      page_.session.wait();
    } else {
      for (int i = 0; i < rounds_of(page_.session); ++i) once();
    }
    return page_.counted(0);
  }

 private:
  void enqueue(const DependentCase& each, bool one_address, CUstream stream) const {
    const Session& session = page_.session;
    launch(session, bump_, {1, 1}, stream, page_.value());
    launch(session, write_, kReaders, stream, page_.written.base(), page_.value(),
           each.dependent ? kWriterNs : uint64_t{0}, uint32_t{each.dependent});
    Shape shape = kReaders;
    shape.dependent = each.dependent;
    launch(session, read_, shape, stream, one_address ? page_.written.base() : page_.read.base(),
           page_.value(), page_.wrong(), uint32_t{each.warm}, uint32_t{each.waits}, uint32_t{each.fence});
  }

  const Page& page_;
  Module module_;
  CUfunction bump_, write_, read_;
};

// Adds to the counts that the claims are about.
struct Totals {
  uint64_t plain = 0, fence = 0, controls = 0;
  bool can_fail = true;
};

Json check_dependent(const Page& page, Totals& totals) {
  const Dependents dependents(page);
  Json cases;
  for (const bool graph : {false, true}) {
    for (const bool dependent : {false, true}) {
      for (const bool warm : {false, true}) {
        for (const bool fence : {false, true}) {
          if (fence && !dependent) continue;
          const DependentCase each{graph, dependent, warm, true, fence};
          const uint64_t wrong = dependents.wrong_words(each, false);
          const uint64_t control = dependents.wrong_words(each, true);
          cases[each.name()] = {{"wrong_words", wrong}, {"control_wrong_words", control}};
          (fence ? totals.fence : totals.plain) += wrong;
          totals.controls += control;
        }
      }
    }
    const DependentCase early{graph, true, false, false, false};
    const uint64_t wrong = dependents.wrong_words(early, true);
    cases[early.name()] = {{"must_be_wrong_words", wrong}};
    totals.can_fail = totals.can_fail && wrong > 0;
  }
  return cases;
}

// Two kernels on two streams, the reader first.
uint64_t beside_wrong_words(const Page& page, const Module& module, CUdeviceptr read, bool fence) {
  const Session& session = page.session;
  const CUfunction reader = module.function("spw_beside_read");
  const CUfunction writer = module.function("spw_beside_write");
  page.clear();
  for (int i = 0; i < rounds_of(session); ++i) {
    const auto round = static_cast<uint32_t>(i + 1);
    launch(session, reader, kReaders, session.stream(0), read, page.ready(), page.flag(), round, page.wrong(),
           uint32_t{fence});
    launch(session, writer, {1, 256}, session.stream(1), page.written.base(), kReadWords, page.ready(),
           round * kReaders.blocks, page.flag(), round, page.wrong());
    session.wait();
  }
  return page.counted(0);
}

Json check_beside(const Page& page, const Module& module, Totals& totals) {
  Json cases;
  for (const bool fence : {false, true}) {
    Json& found = cases[fence ? "beside_fence" : "beside"];
    const uint64_t wrong = beside_wrong_words(page, module, page.read.base(), fence);
    found["wrong_words"] = wrong;
    found["waits_given_up"] = page.counted(1);
    const uint64_t control = beside_wrong_words(page, module, page.written.base(), fence);
    found["control_wrong_words"] = control;
    (fence ? totals.fence : totals.plain) += wrong;
    totals.controls += control;
  }
  return cases;
}

// Two kernels store at once, one up to a word in the middle, the other from `second` on.
uint64_t edge_wrong_words(const Page& page, const Module& module, CUdeviceptr other, uint32_t part,
                          uint32_t second) {
  const Session& session = page.session;
  const CUfunction edge = module.function("spw_edge");
  constexpr uint32_t kFirst = 0x11111111, kSecond = 0x22222222;
  constexpr Shape kWriters = {32, 128};
  size_t wrong = 0;
  page.clear();
  for (int i = 0; i < std::max(1, rounds_of(session) / 10); ++i) {
    session.fill(page.flag(), 4096, 0, session.stream(0));
    session.fill(page.written.base(), page.written.bytes(), 0, session.stream(0));
    session.wait();
    launch(session, edge, kWriters, session.stream(0), page.written.base(), uint32_t{0}, part, kFirst,
           uint32_t{200}, page.flag(), page.wrong());
    launch(session, edge, kWriters, session.stream(1), other, second, kReadWords, kSecond, uint32_t{200},
           page.flag(), page.wrong());
    wrong += session.mismatches(page.third.base(), size_t{part} * 4, kFirst);
    wrong += session.mismatches(page.third.base() + size_t{part} * 4, size_t{kReadWords - part} * 4, kSecond);
  }
  return wrong;
}

Json check_edges(const Page& page, const Module& module, Totals& totals, uint64_t& edges) {
  Json cases;
  for (const uint32_t bytes : {512U, 128U, 32U, 4U}) {
    const uint32_t part = kReadWords / 2 + bytes / 4;
    const uint64_t wrong = edge_wrong_words(page, module, page.read.base(), part, part);
    Json& found = cases["edge_" + std::to_string(bytes)];
    found["wrong_words"] = wrong;
    found["waits_given_up"] = page.counted(1);
    const uint64_t control = edge_wrong_words(page, module, page.written.base(), part, part);
    found["control_wrong_words"] = control;
    edges += wrong;
    totals.controls += control;
  }
  const uint32_t part = kReadWords / 2;
  // Words that neither stores must be found, or nothing would be.
  const uint64_t gap = edge_wrong_words(page, module, page.read.base(), part, part + 64);
  cases["edge_gap"] = {{"must_be_wrong_words", gap}};
  totals.can_fail = totals.can_fail && gap > 0;
  return cases;
}

}  // namespace

Json check_resident_readers(Session& session) {
  const Page page(session);
  Json report = {{"rounds", rounds_of(session)}, {"words_per_round", kReadWords}};
  Totals totals;
  uint64_t edges = 0;
  const Module beside(session, kBesideKernels);
  Json cases;
  try {
    cases.update(check_dependent(page, totals));
    report["wrong_words_dependent"] = totals.plain;
    report["wrong_words_dependent_with_fence"] = totals.fence;
  } catch (const Failure& failure) {  // before compute capability 9.0 there are none
    report["dependent_launches"] = failure.what();
  }
  const Totals dependent = totals;
  cases.update(check_beside(page, beside, totals));
  report["wrong_words_beside"] = totals.plain - dependent.plain;
  report["wrong_words_beside_with_fence"] = totals.fence - dependent.fence;
  cases.update(check_edges(page, beside, totals, edges));
  report["wrong_words_edges"] = edges;
  report["cases"] = std::move(cases);
  report["wrong_words_controls"] = totals.controls;
  report["checks_can_fail"] = totals.can_fail;
  mark_silent(
      session, report,
      {"cases", "wrong_words_dependent", "wrong_words_dependent_with_fence", "wrong_words_beside",
       "wrong_words_beside_with_fence", "wrong_words_edges", "wrong_words_controls", "checks_can_fail"});
  return report;
}

}  // namespace spillway::probe
