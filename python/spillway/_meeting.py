"""Where the ranks of a dryrun meet: what the simulated NCCL is told of this process."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import linecache
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_Where = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int))
_Now = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_End = ctypes.CFUNCTYPE(None, ctypes.c_char_p)

_kept: list[Any] = []  # what the library may call


def meet(torch: Any, is_own: Callable[[str], bool], end: Callable[[], Any]) -> None:
    """Tells the simulated NCCL of the program: `end` is called where the job cannot go on, before the process ends.

    `is_own` tells whether a file is the program's.
    """
    with contextlib.suppress(OSError):
        library = ctypes.CDLL("libspillway_nccl.so.0")
        own_calls = str(torch.__path__[0]) + "/distributed/"

        def where(text: int, size: int, rank: Any) -> None:
            _write(text, size, _line(_own_frame(sys._getframe().f_back, is_own) or _own_frame(_main_frame(), is_own)))
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                rank[0] = torch.distributed.get_rank()

        def now(text: int, size: int) -> int:
            innermost = _main_frame()
            _write(text, size, _line(_own_frame(innermost, is_own)))
            return int(innermost is not None and innermost.f_code.co_filename.startswith(own_calls))

        _kept[:] = [_Where(where), _Now(now), _End(lambda _: end())]
        library.spwNcclSetProgram(*_kept)
        atexit.register(library.spwNcclSetProgram, None, None, None)
        # A helper that a rank starts is no rank, and inherits its variables.
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ and multiprocessing.parent_process() is None:
            library.spwNcclConnect()


def _write(to: int, size: int, line: str) -> None:
    text = line.encode()[: size - 1] + b"\0"
    ctypes.memmove(to, text, len(text))


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _own_frame(frame: FrameType | None, is_own: Callable[[str], bool]) -> FrameType | None:
    """The innermost of the program: of this thread, where it is not PyTorch's own."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _line(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    file, number = frame.f_code.co_filename, frame.f_lineno
    return f"{file}:{number}: {linecache.getline(file, number).strip()}"
