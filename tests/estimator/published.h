// Figures that others measured or derived and published, beside ours: one row each, with how near they must
// be and why they are not nearer. docs/estimator-published.md is this table, printed.
#pragma once

#include <string>
#include <vector>

namespace spillway::estimator::test {

struct PublishedFigure {
  const char* source;
  std::string what;
  const char* unit;
  double published;
  double ours;
  double tolerance;  // share of the published figure
  const char* why;   // what the difference is; empty where the figure is met to its last digit
};

std::vector<PublishedFigure> published_figures();

// The page, Markdown.
std::string published_page(const std::vector<PublishedFigure>& figures);

}  // namespace spillway::estimator::test
