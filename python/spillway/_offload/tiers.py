"""The functions and structs of spillway/offload.h, and which device they are asked of."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from .._counters import PoolId, flat
from .._errors import SpillwayError
from .._library import check, library
from .._pytorch.install import import_torch, installed, is_disabled

TIERS = {"host": 1, "disk": 2, "nowhere": 3}
# These are values of spw_status.
OK, OUT_OF_MEMORY, INVALID_STATE = 0, 2, 4

Pointer = ctypes.c_void_p


class RegionStats(ctypes.Structure):
    """spw_region_stats."""

    _fields_ = [
        *flat("size version", ctypes.c_uint32),
        *flat("device_bytes host_bytes disk_bytes discarded_bytes lost_bytes pins", ctypes.c_uint64),
        ("priority", ctypes.c_int64),
        *flat("evictions restores evict_ns restore_ns", ctypes.c_uint64),
    ]


class TierStats(ctypes.Structure):
    """spw_tier_stats."""

    _fields_ = [
        *flat("size version", ctypes.c_uint32),
        *flat(
            "region_host_bytes region_disk_bytes stash_host_bytes stash_disk_bytes stashes stash_puts stash_gets "
            "late_gets refused_puts out_bytes in_bytes disk_written_bytes disk_read_bytes disk_zero_bytes "
            "disk_verified_bytes disk_mismatches disk_repeated_writes disk_failed_writes disk_file_bytes "
            "disk_limit_bytes disk_saved_bytes disk_today_bytes disk_daily_limit_bytes stuck_bytes "
            "lasting_error",
            ctypes.c_uint64,
        ),
    ]


VISITOR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(RegionStats), ctypes.c_void_p)


@functools.cache
def tiers() -> ctypes.CDLL:
    """The library, with the types of these functions."""
    loaded = library()
    number, text, size = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
    by_tag = ("begin", "end", "restore", "prefetch", "pin", "unpin", "release")
    arguments: dict[str, list[Any]] = {
        **{f"spw_region_{name}": [number, text] for name in by_tag},
        "spw_region_pool": [number, text, ctypes.POINTER(PoolId)],
        "spw_region_evict": [number, text, number],
        "spw_region_set_priority": [number, text, number],
        "spw_region_set_codec": [number, text, number],
        "spw_region_set_default": [text],
        "spw_region_read": [number, text, Pointer, size, Pointer],
        "spw_phase": [number, text, ctypes.POINTER(ctypes.c_uint64)],
        "spw_region_walk": [number, VISITOR, Pointer],
        "spw_stash_streams": [number, Pointer, Pointer],
        "spw_stash_put": [number, Pointer, size, Pointer, number, Pointer],
        "spw_stash_begin_get": [Pointer, Pointer, Pointer],
        "spw_stash_finish_get": [Pointer, Pointer, Pointer],
        "spw_stash_free": [Pointer],
        "spw_tier_stats_get": [number, ctypes.POINTER(TierStats)],
        "spw_memory_info": [number, Pointer, Pointer],
        "spw_pool_trim": [number, PoolId],
    }
    for name, types in arguments.items():
        getattr(loaded, name).argtypes = types
    loaded.spw_stash_free.restype = None
    return loaded


def serves(what: str) -> bool:
    """Whether Spillway serves all CUDA memory here; False where SPILLWAY_DISABLE=1 turned it off.

    Errors: SpillwayError, when it was not installed.
    """
    if installed():
        return True
    if is_disabled():
        return False
    raise SpillwayError(f"{what} needs Spillway's memory: {installed().reason}")


def index_of(device: Any) -> int:
    """The number of a CUDA device, which gets its context; None is the current one. Errors: SpillwayError."""
    torch = import_torch()
    chosen = torch.device("cuda") if device is None else torch.device(device)
    if chosen.type != "cuda":
        raise SpillwayError(f"{device} is no CUDA device; use 'cuda', 'cuda:1' or None for the current one")
    index: int = torch.cuda.current_device() if chosen.index is None else chosen.index
    if index >= torch.cuda.device_count():
        raise SpillwayError(f"there is no device cuda:{index}; this machine has {torch.cuda.device_count()}")
    _use(index)
    return index


@functools.cache
def _use(index: int) -> None:
    """PyTorch makes a context with the first block."""
    import_torch().cuda.synchronize(index)


def tier(name: str, allowed: tuple[str, ...] = tuple(TIERS)) -> int:
    if name not in allowed:
        raise SpillwayError(f"tier {name!r} is not known; allowed: {', '.join(allowed)}")
    return TIERS[name]


def tier_stats(device: Any = None) -> dict[str, int]:
    """What lies beyond a device, and what was moved: the fields of spw_tier_stats by their names.

    Bytes, and counts since the device was first used. Errors: SpillwayError.
    """
    if not serves("tier_stats()"):
        return {}
    read = TierStats(size=ctypes.sizeof(TierStats))
    check(tiers().spw_tier_stats_get(index_of(device), ctypes.byref(read)))
    return values(read)


def empty_host_cache() -> None:
    """Gives pinned host memory that nothing is in any more back to the host; else it is kept for the next time.

    Errors: SpillwayError.
    """
    if serves("empty_host_cache()"):
        check(tiers().spw_pinned_trim())


def values(structure: ctypes.Structure) -> dict[str, int]:
    names = (field[0] for field in structure._fields_)
    return {name: getattr(structure, name) for name in names if name not in ("size", "version")}


def free_bytes(index: int) -> int:
    """What an allocation could still get."""
    found = ctypes.c_uint64()
    check(tiers().spw_memory_info(index, ctypes.byref(found), None))
    return found.value
