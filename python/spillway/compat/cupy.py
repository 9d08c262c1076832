"""CuPy's device memory from Spillway:

    import cupy
    from spillway.compat.cupy import allocate
    cupy.cuda.set_allocator(allocate)       # of every thread; cupy.cuda.using_allocator(allocate) for a scope

It takes the place of CuPy's own pool, and has its rule: an array's memory belongs to the stream that was current when
the array was made, and is reused in the order of that stream. Who uses it on another orders the two before it is freed.
"""

from __future__ import annotations

import weakref
from typing import Any

import cupy

from . import _blocks

# The interface is cupy.cuda.memory's: an allocator takes a size, and answers a MemoryPointer into memory with an owner.
_OutOfMemoryError: Any = cupy.cuda.memory.OutOfMemoryError


class OutOfMemoryError(_OutOfMemoryError):  # type: ignore[misc]
    """CuPy's own, with Spillway's report as its text."""

    def __init__(self, size: int, device: int, report: str) -> None:
        available, total = _blocks.memory_info(device)
        super().__init__(size, total - available)
        self.report = report

    def __str__(self) -> str:
        return self.report


class _Block:
    """Memory that goes back when nothing refers to it any more."""

    def __init__(self, address: int) -> None:
        if address:
            weakref.finalize(self, _blocks.free, address)


def allocate(size: int) -> Any:
    """`size` bytes on CuPy's current device, for its current stream. Thread-safe.

    Errors: OutOfMemoryError, SpillwayError.
    """
    device = int(cupy.cuda.device.get_device_id())
    stream = int(cupy.cuda.get_current_stream().ptr)
    try:
        try:
            address = _blocks.allocate(size, device, stream)
        except _blocks.NoContextError:
            cupy.cuda.runtime.free(0)  # with which the runtime makes the current device's context
            address = _blocks.allocate(size, device, stream)
    except _blocks.OutOfMemoryError as problem:
        raise OutOfMemoryError(size, device, str(problem)) from None
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, _Block(address), device), 0)
