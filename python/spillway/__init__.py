"""Spillway: CUDA memory that fits. A caching allocator under PyTorch.

    import spillway
    spillway.install()          # before anything uses CUDA

or, without a change to the script, ``spillway run -- python train.py``.
"""

from . import _first_use
from ._activations import ActivationOffload, offload_activations
from ._annotate import annotate
from ._errors import SpillwayError, SpillwayWarning
from ._install import Installed, install, installed, mempool_allocator
from ._materialize import Materialized, materialize
from ._optimizer import OptimizerOffload, offload_optimizer
from ._parameters import ParameterOffload, offload_parameters
from ._regions import (
    evict,
    phase,
    pin,
    prefetch,
    region,
    region_pool,
    regions,
    release,
    resident,
    restore,
    unpin,
)
from ._tiers import empty_host_cache, tier_stats
from ._trace import mark, tag

_first_use.watch_imports()

__version__ = "0.1.0"
__all__ = [
    "ActivationOffload",
    "Installed",
    "Materialized",
    "OptimizerOffload",
    "ParameterOffload",
    "SpillwayError",
    "SpillwayWarning",
    "__version__",
    "annotate",
    "empty_host_cache",
    "evict",
    "install",
    "installed",
    "mark",
    "materialize",
    "mempool_allocator",
    "offload_activations",
    "offload_optimizer",
    "offload_parameters",
    "phase",
    "pin",
    "prefetch",
    "region",
    "region_pool",
    "regions",
    "release",
    "resident",
    "restore",
    "tag",
    "tier_stats",
    "unpin",
]
