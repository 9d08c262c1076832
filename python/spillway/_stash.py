"""The bytes of one tensor's storage outside of the device, and the streams that carry them."""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

from . import _install
from ._library import check
from ._tiers import OUT_OF_MEMORY, tiers


@functools.cache
def streams(index: int) -> tuple[Any, Any]:
    """Those of a device, as streams of PyTorch: out of it and back. Errors: SpillwayError."""
    torch = _install.import_torch()
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
        weakref.finalize(self, tiers().spw_stash_free, handle).atexit = False  # type: ignore[misc]

    def begin_get(self) -> Any:
        """A new storage, into which the bytes are being copied. Errors: SpillwayError, torch.OutOfMemoryError."""
        torch = _install.import_torch()
        target = torch.empty(self._size, dtype=torch.uint8, device=torch.device("cuda", self._index))
        # First: inside of an operator the simulated device takes it for an output, which is written by then.
        target.record_stream(streams(self._index)[1])
        check(tiers().spw_stash_begin_get(self._handle, target.data_ptr(), self._current()))
        return target.untyped_storage()

    def finish_get(self) -> bool:
        """Work enqueued from here on comes after the copy. Whether that was still under way for the host.

        Errors: SpillwayError, and the bytes must not be used.
        """
        late = ctypes.c_int()
        check(tiers().spw_stash_finish_get(self._handle, self._current(), ctypes.byref(late)))
        return bool(late.value)

    def wait_until_copied(self) -> None:
        """Work enqueued from here on may change the memory that was copied."""
        _install.import_torch().cuda.current_stream(self._index).wait_event(self._copied)

    def _current(self) -> int:
        stream: int = _install.import_torch().cuda.current_stream(self._index).cuda_stream
        return stream


def use(storage: Any) -> Any:
    """The bytes of a storage that came back, for the current stream: it was made on that of another moment, perhaps."""
    torch = _install.import_torch()
    view = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    view.record_stream(torch.cuda.current_stream(storage.device))
    return view


def put(tensor: Any, to: int) -> Stash | None:
    """Copies the whole storage of a CUDA tensor; None where there is no room now. It may be freed at once.

    Errors: SpillwayError.
    """
    torch = _install.import_torch()
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
