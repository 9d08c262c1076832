"""What depends on the release of PyTorch, all of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._counters import pool_bytes
from .._errors import SpillwayError

OLDEST = (2, 9)
NEWEST_TESTED = (2, 15)

# The vtable of c10::OutOfMemoryError, and c10::Error(std::string, Backtrace, const void*), in the C++11 ABI.
OOM_VTABLE = "_ZTVN3c1016OutOfMemoryErrorE"
ERROR_CONSTRUCTOR = (
    "_ZN3c105ErrorC1ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt10shared_ptrIKNS_9LazyValueIS6_EEEPKv"
)

# Functions of libtorch_cuda.so without arguments: the bytes of the workspaces of cuBLAS and of cuBLASLt, as the
# environment or the program chose them.
WORKSPACE_BYTES = {
    "cublas": "_ZN2at4cuda22getChosenWorkspaceSizeEv",
    "cublasLt": "_ZN2at4cuda26getCUDABlasLtWorkspaceSizeEv",
}

# Says what torch.cuda.memory_stats() has since which release, beyond what 2.11 has, and Spillway's value for a device.
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


def settings_name(torch: Any) -> str:
    """The function of torch._C that takes the settings of PyTorch's allocator while the program runs."""
    return (
        "_accelerator_setAllocatorSettings"
        if release_of(torch) >= (2, 10)
        else "_cuda_cudaCachingAllocator_set_allocator_settings"
    )


def later_stats(torch: Any, device: int) -> dict[str, Any]:
    release = release_of(torch)
    return {name: value(device) for name, (since, value) in LATER_STATS.items() if release >= since}


@dataclass(frozen=True)
class BlasWorkspaces:
    """How products take workspaces: aten/src/ATen/cuda/CublasHandlePool.cpp and aten/src/ATen/native/cuda/Blas.cpp."""

    are_kept: bool  # for the thread and the stream; else each product takes its own and gives it back
    are_shared: bool  # cuBLASLt takes the workspace of cuBLAS
    lt_has_handles: bool  # else cuBLASLt takes a handle of cuBLAS, and with it a workspace of cuBLAS
    lt_adds_matrices: bool  # a bias of two dimensions in half precision, not only one of one


def blas_workspaces(torch: Any) -> BlasWorkspaces:
    release = release_of(torch)
    are_kept = release < (2, 15) or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"
    shared = os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
    return BlasWorkspaces(
        are_kept=are_kept,
        are_shared=are_kept and (shared == "1" or (shared != "0" and release >= (2, 12))),
        lt_has_handles=release >= (2, 12),
        lt_adds_matrices=release >= (2, 14),
    )


def has_seeds_on_host(torch: Any, dropout: float) -> bool:
    """Whether efficient attention has its seed and offset on the host, where no graph is captured."""
    return dropout > 0 or release_of(torch) < (2, 14)


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
