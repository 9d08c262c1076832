"""A program that allocates and frees on the simulated device until its input ends: something to watch.

usage: program.py LIBSPILLWAY LIBCUDA [FEWEST-MIB]
"""

from __future__ import annotations

import ctypes
import random
import select
import sys


def main() -> int:
    cuda = ctypes.CDLL(sys.argv[2])
    spillway = ctypes.CDLL(sys.argv[1])
    fewest = int(sys.argv[3]) if len(sys.argv) > 3 else 64
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0

    def allocate(size: int) -> ctypes.c_void_p:
        block = ctypes.c_void_p()
        assert spillway.spw_alloc(ctypes.c_size_t(size), 0, None, ctypes.byref(block)) == 0
        return block

    kept = allocate(fewest << 20)
    print("ready", flush=True)
    choose = random.Random(fewest)
    blocks: list[ctypes.c_void_p] = []
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        for _ in range(50):
            blocks.append(allocate(choose.choice([700, 40_000, 3 << 20, 17 << 20])))
            if len(blocks) > 40:
                assert spillway.spw_free(blocks.pop(choose.randrange(len(blocks)))) == 0
    assert spillway.spw_free(kept) == 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
