"""The simulated device under PyTorch: what the operators touch, and the races that its driver finds.

    from spillway import sim
    sim.touch_operands()        # once, at any time
    ...
    print(sim.reports())

Needs the simulated driver in the process, not spillway.install(): PyTorch's own allocator can be judged as well.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from ._errors import SpillwayError
from ._library import HERE, part
from ._pytorch import build


def touch_operands() -> None:
    """From here on every operator of PyTorch, on every thread, touches its operands on the simulated device.

    Its kernels compute nothing, so without this no race can be found. fill_ and what is made of it (full, ones) writes
    its value, and _foreach_copy_ copies; other results keep the bytes that were there. Again is ok. Compiles a library
    on first use.

    Errors: SpillwayError, when the driver in the process is not the simulated one, or it cannot be compiled.
    """
    _driver()
    problem = _observer().spillway_operands_start()
    if problem is not None:
        raise SpillwayError(f"operands cannot be touched: {problem.decode()}")


def touched() -> int:
    """How many grids touched operands so far."""
    return int(_observer().spillway_operands_grids())


def reports() -> list[str]:
    """What the race detector found since clear_reports(), oldest first; the first 1000 texts."""
    driver = _driver()
    found = [driver.spwSimReport(index) for index in range(min(driver.spwSimReportCount(), 1000))]
    refused = int(_observer().spillway_operands_refused())
    return [text.decode() for text in found] + ([f"{refused} grids were refused by the device"] if refused else [])


def clear_reports() -> None:
    """Forgets what the race detector found; what was refused by the device stays."""
    _driver().spwSimClearReports()


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        raise SpillwayError(f"there is no CUDA driver ({problem}); preload the simulated one") from None
    if not hasattr(driver, "spwSimTouch"):
        raise SpillwayError("the CUDA driver is a real one; preload the simulated one")
    driver.spwSimReport.restype = ctypes.c_char_p
    driver.spwSimReport.argtypes = [ctypes.c_size_t]
    driver.spwSimReportCount.restype = ctypes.c_size_t
    return driver


@functools.cache
def _observer() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(_compiled()))
    loaded.spillway_operands_start.restype = ctypes.c_char_p
    loaded.spillway_operands_grids.restype = ctypes.c_uint64
    loaded.spillway_operands_refused.restype = ctypes.c_uint64
    return loaded


def _compiled() -> Path:
    import torch

    name = "sim/cuda/sim_control.h"
    header = part(f"include/{name}", name)
    return build.compiled(torch, "spillway_operands", HERE / "_operands", header.parents[2], [header])
