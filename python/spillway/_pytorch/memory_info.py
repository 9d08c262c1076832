"""What torch.cuda.mem_get_info and its like say is free: what Spillway may still take of the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .._library import check, library

Info = tuple[int, int]
_of_driver: Callable[[int], Info] | None = None


def answer(torch: Any) -> None:
    """The driver knows neither limit, reserve nor fraction, beyond which nothing is served."""
    global _of_driver
    runtime = torch._C._cudart
    _of_driver = runtime.cudaMemGetInfo
    runtime.cudaMemGetInfo = memory_info
    if hasattr(torch._C, "_accelerator_getMemoryInfo"):
        torch._C._accelerator_getMemoryInfo = memory_info


def memory_info(device: int) -> Info:
    """Bytes free, within the limit and without the reserve, and in all. What Spillway holds is not free."""
    assert _of_driver is not None
    _, total = _of_driver(device)  # makes the context where there is none, and has PyTorch's errors
    free = ctypes.c_uint64()
    check(library().spw_untaken_memory_info(device, ctypes.byref(free), None))
    return free.value, total


def driver_memory_info(torch: Any, device: int) -> Info:
    """As the driver says."""
    if _of_driver is None:
        found: Info = torch.cuda.mem_get_info(device)
        return found
    return _of_driver(device)
