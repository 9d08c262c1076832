// Prints the schema of dumps: `spillway_dump_schema > docs/schema/dump.schema.json`.
#include <cstdio>

#include "stats/dump.h"

int main() {
  const std::string schema = spillway::dump_schema();
  return std::fwrite(schema.data(), 1, schema.size(), stdout) == schema.size() ? 0 : 1;
}
