// Prints docs/estimator-published.md.
#include <cstdio>

#include "tests/estimator/published.h"

int main() {
  using namespace spillway::estimator::test;
  std::fputs(published_page(published_figures()).c_str(), stdout);
  return 0;
}
