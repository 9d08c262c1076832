#include "sim/cuda/flavour.h"

namespace spillway::sim {

const Flavour kFlavour = {.variable = "SPILLWAY_UNCONTROLLED", .defaults = "capacity:80GiB,"};

}  // namespace spillway::sim
