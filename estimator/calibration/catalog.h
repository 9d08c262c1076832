// The catalog: what was measured beside what was predicted, one JSON object a line, appended by `spillway
// calibrate` and read by `spillway estimate --catalog`. Schema: docs/schema/catalog.schema.json. Factors are
// not kept but concluded anew from all lines of a key, so a catalog can be cut, sorted and joined with
// another by ordinary tools.
#pragma once

#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/calibration/factors.h"
#include "estimator/calibration/signature.h"

namespace spillway::estimator {

struct CatalogLine {
  std::string key;  // Signature::key()
  Signature signature;
  std::string source;  // the dump
  int64_t rank = 0;
  int64_t time_seconds = 0;
  Observation observation;
};

// One line of text, with its newline.
std::string to_text(const CatalogLine& line);

struct Catalog {
  std::vector<CatalogLine> lines;
  std::string damaged;  // the first line that cannot be read and why, and how many there are; empty if none

  // The hardware that lines of this run were measured on, each once.
  std::vector<std::string> hardware_for(const TrainingRun& run) const;
  // Returns those of one key.
  std::vector<Observation> observations(const std::string& key) const;
};

// Damaged lines are skipped and named.
Catalog read_catalog(const std::string& text);

// Appends whole lines or nothing: one write under a lock, undone where it fails. A last line that was cut off
// by something else is ended first. Errors: io, naming the file.
Status append_to_catalog(const std::string& path, const std::vector<CatalogLine>& lines);

}  // namespace spillway::estimator
