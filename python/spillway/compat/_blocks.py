"""Device memory from the C ABI, for packages that take an allocator in Python."""

from __future__ import annotations

import ctypes

from .._errors import SpillwayError
from .._library import check, library

OUT_OF_MEMORY = 2  # SPW_ERROR_OUT_OF_MEMORY
INVALID_STATE = 4  # SPW_ERROR_INVALID_STATE
PER_THREAD_STREAM = 2  # cudaStreamPerThread, above which no handle is a default stream's


class OutOfMemoryError(MemoryError):
    """The text has a report of who holds what."""


class NoContextError(SpillwayError):
    """Nobody has made a context of the device current yet."""


def allocate(size: int, device: int, stream: int = 0) -> int:
    """The address of `size` bytes for use on a stream, which is a cudaStream_t; 0 where size is 0.

    Errors: OutOfMemoryError, NoContextError, SpillwayError.
    """
    out = ctypes.c_void_p()
    status = 0
    if stream > PER_THREAD_STREAM:  # an object of the package's, whose end nobody announces
        status = library().spw_stream_ends_unseen(ctypes.c_int(device), ctypes.c_void_p(stream))
    if status == 0:
        status = library().spw_alloc(
            ctypes.c_size_t(size), ctypes.c_int(device), ctypes.c_void_p(stream), ctypes.byref(out)
        )
    if status == OUT_OF_MEMORY:
        raise OutOfMemoryError(library().spw_last_error().decode(errors="replace"))
    if status == INVALID_STATE:
        raise NoContextError(library().spw_last_error().decode(errors="replace"))
    check(status)
    return out.value or 0


def free(address: int) -> None:
    """Work that is enqueued on the block's stream may still use it. Errors: SpillwayError."""
    check(library().spw_free(ctypes.c_void_p(address)))


def memory_info(device: int) -> tuple[int, int]:
    """Bytes that an allocation could get, and those of the device. Errors: SpillwayError."""
    available, total = ctypes.c_uint64(), ctypes.c_uint64()
    check(library().spw_memory_info(device, ctypes.byref(available), ctypes.byref(total)))
    return available.value, total.value
