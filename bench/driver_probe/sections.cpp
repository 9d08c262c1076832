#include "bench/driver_probe/sections.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace spillway::probe {
namespace {

Json found(const Session& session, const Section& section, std::string_view question) {
  for (const std::string_view known : section.questions) {
    if (known == question) return section.ask(session, question);
  }
  throw Failure(fmt::format("{} has no question '{}'", section.name, question));
}

}  // namespace

const std::vector<Section>& all_sections() {
  static const std::vector<Section> kSections = {
      {"costs_ns", measure_costs},
      {"behind_work", measure_behind_work},
      {"ranges", measure_ranges},
      {"aliasing", check_aliasing},
      {"aliasing_resident", check_resident_readers},
      {"answers", check_answers},
      {"copies", measure_copies},
      {"unmap_runs", measure_unmap_runs},
      {"beside_graphs", measure_beside_graphs},
      {"host_memory", nullptr, {"host", "numa_node", "numa_current"}, ask_host_memory},
      {"captured_streams",
       nullptr,
       {"cuStreamGetId", "cuStreamGetCtx", "cuStreamIsCapturing", "memory_is_made_and_mapped"},
       ask_captured_stream},
      {"destroyed_streams",
       nullptr,
       {"cuStreamQuery", "cuStreamGetId", "cuStreamGetCtx", "cuStreamIsCapturing", "cuEventRecord",
        "handle_of_the_next"},
       ask_destroyed_stream},
      {"reset_context",
       nullptr,
       {"state", "cuStreamQuery", "cuStreamIsCapturing", "cuEventRecord", "cuEventQuery", "cuMemCreate",
        "next_use"},
       ask_reset_context},
      {"green_contexts", nullptr, {"streams", "memory"}, ask_green_context},
      {"remap_to_host", check_remap},
      {"trim", measure_trim},
      {"page_tables", measure_page_tables},
      {"mapping_limit", find_mapping_limit},
  };
  return kSections;
}

Json measure_here(const Options& options, std::string_view name) {
  try {
    // It ends with the process: a context that a question has reset may take no further call.
    static Session& session = *new Session(options);
    const size_t dot = name.find('.');
    for (const Section& section : all_sections()) {
      if (section.name != name.substr(0, dot)) continue;
      if (dot != std::string_view::npos) return found(session, section, name.substr(dot + 1));
      if (section.measure != nullptr) return section.measure(session);
    }
    throw Failure(fmt::format("nothing is called '{}'", name));
  } catch (const Absent& absent) {
    return {{"absent", absent.what()}};
  } catch (const std::exception& failure) {
    return {{"error", failure.what()}};
  }
}

void mark_silent(const Session& session, Json& section, std::initializer_list<std::string_view> fields) {
  if (!session.has_kernels())
    section["says_nothing"] = std::vector<std::string>(fields.begin(), fields.end());
}

}  // namespace spillway::probe
