"""Notes which line of the program initialises CUDA first, for the message that it was too early."""

from __future__ import annotations

import os
import traceback
from types import ModuleType

from .after_import import after_import

_line: str | None = None
_is_watched = False


def watch_imports() -> None:
    """From here on the first initialisation is noted, whenever PyTorch is imported."""
    after_import("torch", watch)


def watch(torch: ModuleType) -> None:
    global _is_watched
    if torch.version.cuda is None or torch.cuda.is_initialized():
        return
    initialise = torch._C._cuda_init
    _is_watched = True

    def noting() -> None:
        global _line
        if _line is None:
            libraries = (str(torch.__path__[0]), os.path.dirname(os.path.dirname(__file__)))
            frames = [frame for frame in traceback.extract_stack()[:-1] if not frame.filename.startswith(libraries)]
            _line = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else None
        initialise()

    torch._C._cuda_init = noting


def describe() -> str:
    if _line is not None:
        return f"CUDA was used first at {_line}"
    if _is_watched:
        return "what used CUDA first is not known, because it was no line of Python"
    return "what used CUDA first is not known, because it came before the import of spillway"
