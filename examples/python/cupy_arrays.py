"""CuPy's arrays in Spillway's memory.

    cupy_arrays.py [STEPS]

Ends with the sum checked, and what is still in use: nothing.
"""

from __future__ import annotations

import sys

import cupy
from spillway.compat.cupy import allocate

ELEMENTS = 1 << 18


def run(steps: int) -> None:
    """Adds arrays that come and go on a stream of their own."""
    cupy.cuda.set_allocator(allocate)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        total = cupy.zeros(ELEMENTS, dtype=cupy.int64)
        for step in range(steps):
            total += cupy.full(ELEMENTS, step, dtype=cupy.int64)
        found = int(total[0])
        stream.synchronize()
    if found != sum(range(steps)):
        raise SystemExit(f"cupy_arrays.py: the sum is {found}, not {sum(range(steps))}")
    print(f"{steps} arrays were added")


if __name__ == "__main__":
    if len(sys.argv) > 2 or not (sys.argv[1:] or ["20"])[0].isdecimal():
        sys.exit("usage: cupy_arrays.py [STEPS]")
    run(int((sys.argv[1:] or ["20"])[0]))
