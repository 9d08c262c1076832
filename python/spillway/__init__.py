"""Spillway: CUDA memory that fits. A caching allocator under PyTorch.

    import spillway
    spillway.install()          # before anything uses CUDA

or, without a change to the script, ``spillway run -- python train.py``.
"""

from . import _first_use
from ._annotate import annotate
from ._errors import SpillwayError, SpillwayWarning
from ._install import Installed, install, installed, mempool_allocator

_first_use.watch_imports()

__version__ = "0.1.0"
__all__ = [
    "Installed",
    "SpillwayError",
    "SpillwayWarning",
    "__version__",
    "annotate",
    "install",
    "installed",
    "mempool_allocator",
]
