"""Making Spillway the allocator of the process."""

from __future__ import annotations

import ctypes
import os
import warnings
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from . import _build, _hooks, _plain, _releases, _settings
from ._errors import SpillwayError, SpillwayWarning
from ._library import library, option

Mode = Literal["auto", "full", "plain"]
MODES = ("auto", "full", "plain")


@dataclass(frozen=True)
class Installed:
    """Which allocator serves: "full" or "plain" Spillway, or "none" where PyTorch's own goes on, and why."""

    mode: Literal["full", "plain", "none"]
    reason: str = ""

    def __bool__(self) -> bool:
        return self.mode != "none"


_state: Installed | None = None


def installed() -> Installed:
    """What install() did in this process."""
    return _state if _state is not None else Installed("none", "install() was not called")


def install(mode: Mode = "auto", *, pinned_memory: bool | None = None, fallback: bool = False) -> Installed:
    """Serves all CUDA memory of PyTorch by Spillway, from here to the end of the process.

    To be called before anything uses CUDA. "full" answers everything that torch.cuda.memory can ask, through an
    extension that is compiled on first use; "plain" needs no compiler, and refuses what it lacks; "auto" is "full".
    Again is ok. With SPILLWAY_DISABLE=1 nothing is done.

    pinned_memory=True serves pinned host memory too, which needs "full"; left out, the option pinned_memory decides.

    Raises SpillwayError, one line that names the fix, and PyTorch's own allocator stays; with fallback=True that is a
    warning, and the program goes on.
    """
    global _state
    if mode not in MODES:
        raise SpillwayError(f"mode {mode!r} is not known; allowed: {', '.join(MODES)}")
    if is_disabled():
        _state = Installed("none", "SPILLWAY_DISABLE is set")
        return _state
    if _state:
        if mode not in ("auto", _state.mode):
            raise SpillwayError(f"installed as {_state.mode!r} already; the allocator of a process cannot be changed")
        return _state
    try:
        _state = _install("full" if mode == "auto" else mode, pinned_memory)
    except SpillwayError as problem:
        if not fallback:
            raise
        warnings.warn(f"PyTorch's own allocator serves: {problem}", SpillwayWarning, stacklevel=2)
        _state = Installed("none", str(problem))
    return _state


def is_disabled() -> bool:
    return os.environ.get("SPILLWAY_DISABLE", "") not in ("", "0")


def _install(mode: Literal["full", "plain"], pinned_memory: bool | None) -> Installed:
    torch = import_torch()
    _releases.check_release(torch)
    if (reason := _releases.is_allocator_taken(torch)) is not None:
        raise SpillwayError(f"{reason}: call spillway.install() first, right after the imports; {first_use()}")
    settings = _settings.read_environment(os.environ)
    if (other := _releases.other_allocator(torch)) is not None:
        raise SpillwayError(f"the allocator '{other}' was chosen already: remove one of the two")
    library()
    if pinned_memory is None:
        pinned_memory = option("pinned_memory") == "on"
    if mode == "plain":
        if pinned_memory:
            raise SpillwayError(
                "pinned_memory is not served by Spillway's plain mode: use spillway.install(mode='full')"
            )
        _plain.install(torch)
    else:
        _settings.leave_registration(os.environ)
        _install_extension(torch, pinned_memory)
    _settings.apply(torch, settings, pinned_memory)
    torch._C._cuda_changeCurrentAllocator = _stay
    return Installed(mode)


def _stay(_: object) -> NoReturn:
    raise SpillwayError("another allocator was chosen after Spillway was installed: remove one of the two")


def mempool_allocator() -> Any:
    """Spillway for a region of a program: torch.cuda.MemPool(spillway.mempool_allocator()).

    Beside PyTorch's own allocator, and without install(): PyTorch takes memory for the pool from here in segments, and
    divides it. Spillway's counters count the segments, PyTorch's the tensors. With SPILLWAY_DISABLE=1 it is None, a
    pool of PyTorch's own, and after install() too: every pool is Spillway's then. Raises SpillwayError where PyTorch or
    the library cannot be loaded.
    """
    if is_disabled() or installed().mode == "full":
        return None
    torch = import_torch()
    _releases.check_release(torch)
    return _hooks.pluggable(torch, _hooks.SEGMENTS)


def in_use() -> bool:
    """Whether Spillway serves memory here: all of it, or that of pools."""
    return bool(installed()) or _hooks.serve_pools()


def import_torch() -> Any:
    try:
        import torch
    except ImportError as problem:
        raise SpillwayError(f"PyTorch cannot be imported ({problem}); install torch first") from None
    return torch


def _install_extension(torch: Any, pinned_memory: bool) -> None:
    path = _build.extension(torch)
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as problem:
        raise SpillwayError(f"{path} cannot be loaded ({problem}); delete it, and it is compiled anew") from None
    steps = [loaded.spillway_torch_install, *([loaded.spillway_torch_install_pinned] if pinned_memory else [])]
    for step in steps:
        step.restype = ctypes.c_char_p
        refusal = step()
        if refusal is not None:
            first_line = refusal.decode(errors="replace").splitlines()[0]
            raise SpillwayError(f"PyTorch refuses another allocator ({first_line}): {first_use()}")


def first_use() -> str:
    """Which call used CUDA first, where that was noted."""
    from . import _first_use

    return _first_use.describe()
