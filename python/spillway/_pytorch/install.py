"""Making Spillway the allocator of the process."""

from __future__ import annotations

import ctypes
import os
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from .._errors import SpillwayError, SpillwayWarning
from .._library import library, option
from . import build, captures, first_use, hooks, memory_info, plain, profile, releases, settings

Mode = Literal["auto", "full", "plain"]
MODES = ("auto", "full", "plain")


@dataclass(frozen=True)
class Installed:
    """Which allocator serves: "full" or "plain" Spillway, or "none" where PyTorch's own goes on, and why; and whether
    pinned host memory is Spillway's too."""

    mode: Literal["full", "plain", "none"]
    reason: str = ""
    pinned_memory: bool = False

    def __bool__(self) -> bool:
        return self.mode != "none"


_state = Installed("none", "call spillway.install() first, right after the imports")


def installed() -> Installed:
    """What install() did in this process."""
    return _state


def install(mode: Mode = "auto", *, pinned_memory: bool | None = None, fallback: bool = False) -> Installed:
    """Serves all CUDA memory of PyTorch by Spillway, from here to the end of the process.

    To be called before anything uses CUDA. "full" answers everything that torch.cuda.memory can ask, through an
    extension that is compiled on first use; "plain" needs no compiler, and refuses what it lacks; "auto" is "full".
    Again is ok. With SPILLWAY_DISABLE=1 nothing is done.

    pinned_memory=True serves pinned host memory too, which needs "full"; left out, the option pinned_memory decides.
    It may be asked for later too, until memory is pinned or CUDA is used.

    Raises SpillwayError, one line that names the fix, and the allocator that serves stays: PyTorch's own, or what was
    installed already. With fallback=True that is a warning, and the program goes on.
    """
    global _state
    if mode not in MODES:
        raise SpillwayError(f"mode {mode!r} is not known; allowed: {', '.join(MODES)}")
    if is_disabled():
        if not _state:
            _state = Installed("none", "SPILLWAY_DISABLE is set")
        return _state
    try:
        if _state:
            _install_again(mode, pinned_memory)
        else:
            _install("full" if mode == "auto" else mode, pinned_memory)
    except SpillwayError as problem:
        if not fallback:
            raise
        if not _state:
            _state = Installed("none", str(problem))
        serves = "what was installed" if _state else "PyTorch's own allocator"
        warnings.warn(f"{serves} serves: {problem}", SpillwayWarning, stacklevel=2)
    return _state


def is_disabled() -> bool:
    return os.environ.get("SPILLWAY_DISABLE", "") not in ("", "0")


def _install(mode: Literal["full", "plain"], pinned_memory: bool | None) -> None:
    """What can fail comes before the allocator is changed; from there on the state says so."""
    global _state
    torch = import_torch()
    releases.check_release(torch)
    if (reason := releases.is_allocator_taken(torch)) is not None:
        raise SpillwayError(f"{reason}: call spillway.install() first, right after the imports; {first_use.describe()}")
    asked = settings.read_environment(os.environ)
    if (other := releases.other_allocator(torch)) is not None:
        raise SpillwayError(f"the allocator '{other}' was chosen already: remove one of the two")
    settings.check_values(torch, os.environ)
    library()
    asked.remarks += profile.follow()
    if pinned_memory is None:
        pinned_memory = option("pinned_memory") == "on"
    if mode == "plain":
        if pinned_memory:
            plain.refuse("pinned_memory")
        settings.remark(asked.remarks)
        plain.change_allocator(torch)
    else:
        extension = _load_extension(torch)
        registrations = settings.registrations(os.environ)
        settings.remark(asked.remarks + [settings.registration_remark(name) for name in registrations])
        if pinned_memory:
            settings.remark(asked.pinned_remarks)
        _change_allocator(extension.spillway_torch_install)
        os.environ.update(dict.fromkeys(registrations, "0"))
    _state = Installed(mode)
    torch._C._cuda_changeCurrentAllocator = _stay
    memory_info.answer(torch)
    captures.keep_memory(torch)
    if mode == "plain":
        plain.answer(torch)
    elif pinned_memory:
        _serve_pinned_memory(extension)
    settings.apply(torch, asked, lambda: _state.pinned_memory)


def _install_again(mode: Mode, pinned_memory: bool | None) -> None:
    if mode not in ("auto", _state.mode):
        raise SpillwayError(f"installed as {_state.mode!r} already; the allocator of a process cannot be changed")
    if pinned_memory in (None, _state.pinned_memory):
        return
    if not pinned_memory:
        raise SpillwayError(
            "pinned memory is Spillway's already: give pinned_memory=False to the first install(), or leave out the "
            "option pinned_memory"
        )
    if _state.mode == "plain":
        plain.refuse("pinned_memory")
    torch = import_torch()
    _check_nothing_is_pinned(torch)
    settings.remark(settings.read_environment(os.environ).pinned_remarks)
    _serve_pinned_memory(_load_extension(torch))


def _check_nothing_is_pinned(torch: Any) -> None:
    """A block or a graph of PyTorch's own allocator of pinned memory would not hear of its use from the change on."""
    if (reason := releases.is_allocator_taken(torch)) is not None:
        reason = f"{reason} ({first_use.describe()})"
    elif torch._C._cuda_hostMemoryStats()["active_bytes"]["current"] > 0:
        reason = "PyTorch's own allocator pinned memory already"
    if reason is not None:
        raise SpillwayError(
            f"{reason}: call spillway.install(pinned_memory=True) first, right after the imports, or set "
            "SPILLWAY_CONF=pinned_memory:on"
        )


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
    releases.check_release(torch)
    return hooks.pluggable(torch, hooks.SEGMENTS)


def in_use() -> bool:
    """Whether Spillway serves memory here: all of it, or that of pools."""
    return bool(installed()) or hooks.serve_pools()


def import_torch() -> Any:
    try:
        import torch
    except ImportError as problem:
        raise SpillwayError(f"PyTorch cannot be imported ({problem}); install torch first") from None
    return torch


def _load_extension(torch: Any) -> ctypes.CDLL:
    path = build.extension(torch)
    try:
        return ctypes.CDLL(str(path))
    except OSError as problem:
        raise SpillwayError(f"{path} cannot be loaded ({problem}); delete it, and it is compiled anew") from None


def _change_allocator(change: Any) -> None:
    """`change` is a function of the extension."""
    change.restype = ctypes.c_char_p
    refusal = change()
    if refusal is not None:
        first_line = refusal.decode(errors="replace").splitlines()[0]
        raise SpillwayError(f"PyTorch refuses another allocator ({first_line}): {first_use.describe()}")


def _serve_pinned_memory(extension: ctypes.CDLL) -> None:
    global _state
    _change_allocator(extension.spillway_torch_install_pinned)
    _state = replace(_state, pinned_memory=True)
