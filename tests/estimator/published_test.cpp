// Every published figure within its tolerance, and the page that shows them.
#include "tests/estimator/published.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string_view>

namespace spillway::estimator::test {
namespace {

TEST(Published, EveryFigureIsWithinItsTolerance) {
  for (const PublishedFigure& figure : published_figures()) {
    EXPECT_NEAR(figure.ours, figure.published, figure.tolerance * std::abs(figure.published))
        << figure.source << ": " << figure.what;
  }
}

// What differs by more than a digit says why.
TEST(Published, DeviationsAreExplained) {
  for (const PublishedFigure& figure : published_figures()) {
    const bool explained = figure.tolerance <= 0.05 || !std::string_view(figure.why).empty();
    EXPECT_TRUE(explained) << figure.source << ": " << figure.what;
  }
}

TEST(Published, PageIsWhatIsPrinted) {
  std::ifstream file(SPILLWAY_PUBLISHED_PAGE);
  std::ostringstream page;
  page << file.rdbuf();
  EXPECT_EQ(page.str(), published_page(published_figures()));
}

}  // namespace
}  // namespace spillway::estimator::test
