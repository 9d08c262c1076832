"""The bytes of one tensor's storage outside of the device, and the streams that carry them."""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

from .._library import check
from .._pytorch.install import import_torch
from .tiers import OUT_OF_MEMORY, tiers


@functools.cache
def streams(index: int) -> tuple[Any, Any]:
    """Those of a device, as streams of PyTorch: out of it and back. Errors: SpillwayError."""
    torch = import_torch()
    out, back = ctypes.c_void_p(), ctypes.c_void_p()
    check(tiers().spw_stash_streams(index, ctypes.byref(out), ctypes.byref(back)))
    return tuple(torch.cuda.ExternalStream(each.value, device=index) for each in (out, back))


class Stash:
    """A copy of a storage as it is when what is enqueued on the current stream is done. Given up with the object.

    Not thread-safe.
    """

    def __init__(self, handle: int, index: int, size: int) -> None:
        self._handle = handle
        self._copied = streams(index)[0].record_event()
        self._index = index
        self._size = size
        self._targets: list[Any] = []  # the storage that it is being copied into
        weakref.finalize(self, give_up, handle, self._targets).atexit = False  # type: ignore[misc]

    @property
    def is_coming(self) -> bool:
        return bool(self._targets)

    def begin_get(self) -> None:
        """Begins to copy the bytes into a new storage. Errors: SpillwayError, torch.OutOfMemoryError."""
        torch = import_torch()
        target = torch.empty(self._size, dtype=torch.uint8, device=torch.device("cuda", self._index))
        # First: inside of an operator the simulated device takes it for an output, which is written by then.
        target.record_stream(streams(self._index)[1])
        check(tiers().spw_stash_begin_get(self._handle, target.data_ptr(), self._current()))
        self._targets.append(target.untyped_storage())

    def finish_get(self) -> Any:
        """The storage that begin_get() made, for work enqueued from here on. Errors: SpillwayError."""
        status = tiers().spw_stash_finish_get(self._handle, self._current(), None)
        storage = self._targets.pop()
        check(status)
        use(storage)
        return storage

    def wait_until_copied(self) -> None:
        """Work enqueued from here on may change the memory that was copied."""
        import_torch().cuda.current_stream(self._index).wait_event(self._copied)

    def _current(self) -> int:
        stream: int = import_torch().cuda.current_stream(self._index).cuda_stream
        return stream


def give_up(handle: int, targets: list[Any]) -> None:
    """What is being copied into stays until no copy will be enqueued."""
    tiers().spw_stash_free(handle)
    targets.clear()


def view(storage: Any) -> Any:
    torch = import_torch()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def use(storage: Any) -> None:
    """The current stream uses a storage that may have been made on another."""
    view(storage).record_stream(import_torch().cuda.current_stream(storage.device))


def put(tensor: Any, to: int) -> Stash | None:
    """Copies the whole storage of a CUDA tensor; None where there is no room now. It may be freed at once.

    Errors: SpillwayError.
    """
    torch = import_torch()
    index, storage = tensor.device.index, tensor.untyped_storage()
    handle = ctypes.c_void_p()
    stream = torch.cuda.current_stream(index).cuda_stream
    tensor.record_stream(streams(index)[0])
    status = tiers().spw_stash_put(index, storage.data_ptr(), storage.nbytes(), stream, to, ctypes.byref(handle))
    if status == OUT_OF_MEMORY:
        return None
    check(status)
    assert handle.value is not None
    return Stash(handle.value, index, storage.nbytes())
