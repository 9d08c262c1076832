"""What depends on the release of PyTorch, all of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

from ._counters import pool_bytes
from ._errors import SpillwayError

OLDEST = (2, 11)
NEWEST_TESTED = (2, 15)

# The vtable of c10::OutOfMemoryError, and c10::Error(std::string, Backtrace, const void*), in the C++11 ABI.
OOM_VTABLE = "_ZTVN3c1016OutOfMemoryErrorE"
ERROR_CONSTRUCTOR = (
    "_ZN3c105ErrorC1ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt10shared_ptrIKNS_9LazyValueIS6_EEEPKv"
)


# What torch.cuda.memory_stats() has since which release, beyond what 2.11 has, and Spillway's value for a device.
LATER_STATS: dict[str, tuple[tuple[int, int], Callable[[int], Any]]] = {
    "num_oom_rejections": ((2, 12), lambda _: 0),
    "reserved_bytes_by_private_pools": ((2, 13), pool_bytes),
}


def release_of(torch: Any) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if match is None:
        raise SpillwayError(f"the version of PyTorch is not understood: {torch.__version__}")
    return int(match[1]), int(match[2])


def check_release(torch: Any) -> None:
    if release_of(torch) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise SpillwayError(f"PyTorch {torch.__version__} is not supported; upgrade to {oldest} or later")
    if torch.version.cuda is None:
        raise SpillwayError(f"PyTorch {torch.__version__} is built without CUDA; install a CUDA build")


def later_stats(torch: Any, device: int) -> dict[str, Any]:
    release = release_of(torch)
    return {name: value(device) for name, (since, value) in LATER_STATS.items() if release >= since}


def use_nccl_without_hook() -> None:
    """As of 2.15 a group of NCCL asks for a snapshot in C++ when it ends, unless it is of the older kind."""
    os.environ["TORCH_DIST_USE_NCCL2"] = "0"
    groups = sys.modules.get("torch.distributed.distributed_c10d")
    if register := getattr(groups, "_register_builtin_nccl_as_legacy", None):
        register()


def is_allocator_taken(torch: Any) -> str | None:
    """Why the allocator can no longer be changed; None while it can."""
    if torch.cuda.is_initialized():
        return "CUDA is initialised already"
    return None


def other_allocator(torch: Any) -> str | None:
    """The allocator that the program chose instead of PyTorch's own; None where it chose none."""
    backend = str(torch.cuda.get_allocator_backend())
    return None if backend == "native" else backend
