"""Numba's device arrays in Spillway's memory: two streams, and no array is handed out while one of them uses it.

    numba_arrays.py [STEPS]

Ends with the bytes checked, and what the allocator served.
"""

from __future__ import annotations

import sys

import numpy
from numba import cuda
from spillway.compat.numba import MemoryManager

ELEMENTS = 1 << 18


def run(steps: int) -> None:
    """Copies to the device on one stream and back on the other; the arrays go while their copies are under way."""
    cuda.set_memory_manager(MemoryManager)
    streams = cuda.stream(), cuda.stream()
    results = cuda.pinned_array((steps, ELEMENTS), dtype=numpy.int32)
    sources = cuda.pinned_array((steps, ELEMENTS), dtype=numpy.int32)
    for step in range(steps):
        sources[step] = step
        stream = streams[step % 2]
        array = cuda.device_array(ELEMENTS, dtype=numpy.int32, stream=stream)
        array.copy_to_device(sources[step], stream=stream)
        array.copy_to_host(results[step], stream=stream)
        del array
    cuda.synchronize()
    if not (results == sources).all():
        raise SystemExit("numba_arrays.py: an array was overwritten while it was in use")
    free, total = cuda.current_context().get_memory_info()
    print(f"{steps} arrays; {free >> 20} of {total >> 20} MiB are free")


if __name__ == "__main__":
    if len(sys.argv) > 2 or not (sys.argv[1:] or ["20"])[0].isdecimal():
        sys.exit("usage: numba_arrays.py [STEPS]")
    run(int((sys.argv[1:] or ["20"])[0]))
