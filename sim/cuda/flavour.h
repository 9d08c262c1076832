// Says what one simulated driver has and another has not: each is linked with one source that defines
// kFlavour.
#pragma once

namespace spillway::sim {

struct Flavour {
  const char* variable;  // of the environment; its configuration is read at cuInit
  const char* defaults;  // a configuration that goes before that
};

extern const Flavour kFlavour;

}  // namespace spillway::sim
