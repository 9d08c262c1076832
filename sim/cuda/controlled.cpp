#include "sim/cuda/flavour.h"

namespace spillway::sim {

const Flavour kFlavour = {.variable = "SPILLWAY_SIM", .defaults = ""};

}  // namespace spillway::sim
