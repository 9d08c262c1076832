"""Spillway: CUDA memory that fits. A caching allocator under PyTorch.

    import spillway
    spillway.install()          # before anything uses CUDA

or, without a change to the script, ``spillway run -- python train.py``.
"""

from ._errors import SpillwayError, SpillwayWarning
from ._offload.activations import ActivationOffload, offload_activations
from ._offload.optimizer import OptimizerOffload, offload_optimizer
from ._offload.parameters import ParameterOffload, offload_parameters
from ._offload.regions import (
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
from ._offload.tiers import empty_host_cache, tier_stats
from ._pytorch.annotate import annotate
from ._pytorch.first_use import watch_imports as _watch_imports
from ._pytorch.install import Installed, install, installed, mempool_allocator
from ._pytorch.materialize import Materialized, materialize
from ._pytorch.trace import mark, tag

_watch_imports()

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
