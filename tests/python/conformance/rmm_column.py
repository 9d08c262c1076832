"""RMM as PyTorch's allocator on the simulated device.

It is RMM's own allocator for PyTorch (rmm.allocators.torch), with memory from the simulated runtime by way of
CallbackMemoryResource. Its own resources hold a static copy of NVIDIA's runtime, which asks the driver for tables that
NVIDIA does not document (cuGetExportTable) and gives up without them.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from typing import Any


def install(folder: str | None) -> None:
    assert folder is not None
    sys.path.insert(0, folder)
    rmm: Any = importlib.import_module("rmm")
    torch: Any = importlib.import_module("torch")
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda[:2]}")

    def allocate(size: int, _: object) -> int:
        pointer = ctypes.c_void_p()
        if runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) != 0:
            runtime.cudaGetLastError()
            raise MemoryError("out of memory")
        return pointer.value or 0

    def free(pointer: int, *_: object) -> None:
        runtime.cudaFree(ctypes.c_void_p(pointer))

    rmm.mr.set_per_device_resource(0, rmm.mr.CallbackMemoryResource(allocate, free))
    allocators: Any = importlib.import_module("rmm.allocators.torch")
    torch.cuda.memory.change_current_allocator(allocators.rmm_torch_allocator)
