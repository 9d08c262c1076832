"""Numba's device memory from Spillway, by the plugin interface of its CUDA target:

    from numba import cuda
    from spillway.compat.numba import MemoryManager
    cuda.set_memory_manager(MemoryManager)      # before anything uses CUDA

or, without a change to the program, NUMBA_CUDA_MEMORY_MANAGER=spillway.compat.numba. It serves Numba's built-in target
and the package numba-cuda.

Numba says on no stream when it frees, and its programs rely on what cuMemFree does: memory that any stream still uses
is not handed out. So frees are collected, as Numba's own manager does, and go back behind a wait for the context.
"""

from __future__ import annotations

import weakref
from typing import Any

from numba import cuda
from numba.cuda.cudadrv import driver

from .._errors import SpillwayError
from . import _blocks

_Base: Any = cuda.HostOnlyCUDAMemoryManager
CUDA_ERROR_OUT_OF_MEMORY = 2


def _pointer(address: int) -> Any:
    """In the form that Numba passes to the driver: its own ctypes, or the package cuda-bindings."""
    if getattr(driver, "USE_NV_BINDING", True):
        from cuda.bindings.driver import CUdeviceptr

        return CUdeviceptr(address)
    from numba.cuda.cudadrv.drvapi import cu_device_ptr

    return cu_device_ptr(address)


class MemoryManager(_Base):  # type: ignore[misc]
    """One for each context, made by Numba. Host memory is Numba's own."""

    interface_version = 1

    def initialize(self) -> None:
        """Called by Numba whenever the context becomes active."""
        self.deallocations.memory_capacity = self.get_memory_info().total

    def memalloc(self, size: int) -> Any:
        """Errors: CudaAPIError, with Spillway's report for want of memory; SpillwayError."""
        device = int(self.context.device.id)
        try:
            address = self._allocate(size, device)
        except _blocks.OutOfMemoryError as problem:
            raise driver.CudaAPIError(CUDA_ERROR_OUT_OF_MEMORY, str(problem)) from None
        release = _release(weakref.ref(self.context), self.deallocations, address, size)
        return cuda.MemoryPointer(weakref.proxy(self.context), _pointer(address), size, finalizer=release)

    def _allocate(self, size: int, device: int) -> int:
        try:
            return _blocks.allocate(size, device)
        except _blocks.OutOfMemoryError:
            self.deallocations.clear()
        return _blocks.allocate(size, device)

    def get_ipc_handle(self, memory: Any) -> Any:
        raise SpillwayError("Numba's IPC handles are cuMemAlloc's; Spillway's memory is shown by spw_ipc_get_handle()")

    def get_memory_info(self) -> Any:
        """What an allocation could still get, and what the device has. Errors: SpillwayError."""
        available, total = _blocks.memory_info(int(self.context.device.id))
        return cuda.MemoryInfo(free=available, total=total)


def _release(context: Any, deallocations: Any, address: int, size: int) -> Any:
    """What Numba calls when the memory is not needed any more. It keeps nothing alive but the collected frees."""

    def wait_and_free(handle: int) -> None:
        alive = context()
        if alive is not None:  # else the context was reset, and nothing runs
            alive.push()
            try:
                alive.synchronize()
            finally:
                alive.pop()
        _blocks.free(handle)

    return lambda: deallocations.add_item(wait_and_free, address, size)


_numba_memory_manager = MemoryManager  # the name that NUMBA_CUDA_MEMORY_MANAGER looks for
