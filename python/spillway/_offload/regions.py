"""Regions: memory under a tag that leaves the device together, and comes back to the same addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .._counters import PoolId
from .._errors import SpillwayError
from .._library import check
from .tiers import OK, VISITOR, index_of, serves, tier, tiers, values

CODECS = ("none", "lz4", "zstd")  # spw_codec


@contextmanager
def region(tag: str, device: Any = None, evictable: int | None = None, codec: str | None = None) -> Iterator[None]:
    """What this thread allocates on the device inside belongs to the region `tag`, which is made if need be.

    A tag is 1 to 64 letters, digits and ``._-/:``. Regions nest; the innermost serves. `evictable` above 0 lets an
    allocation that would fail evict the region to host memory, the highest first: use it inside resident() then. 0 is
    never, the default; None leaves what was said before. `codec`, "none", "lz4" or "zstd", packs what goes to the disk,
    without loss and where it pays, instead of the option spill_codec. Errors: SpillwayError.
    """
    if not serves("region()"):
        yield
        return
    index, name = index_of(device), encoded(tag)
    if evictable is not None and evictable < 0:
        raise SpillwayError(f"evictable={evictable} is not allowed; allowed: 0 for never, and above")
    if codec is not None and codec not in CODECS:
        raise SpillwayError(f"codec={codec!r} is not known; allowed: {', '.join(CODECS)}")
    check(tiers().spw_region_begin(index, name))
    try:
        if codec is not None:
            check(tiers().spw_region_set_codec(index, name, CODECS.index(codec)))
        if evictable is not None:
            check(tiers().spw_region_set_priority(index, name, evictable))
        yield
    finally:
        check(tiers().spw_region_end(index, name))


def region_pool(tag: str, device: Any = None) -> tuple[int, int]:
    """The region's pool, for ``torch.cuda.graph(..., pool=)``: such graphs stay valid when the region comes back.

    Errors: SpillwayError, which SPILLWAY_DISABLE=1 is too.
    """
    if not serves("region_pool()"):
        raise SpillwayError("region_pool() has no pool to name: SPILLWAY_DISABLE is set")
    found = PoolId()
    check(tiers().spw_region_pool(index_of(device), encoded(tag), ctypes.byref(found)))
    return found.first, found.second


def evict(tag: str, to: str = "host", device: Any = None) -> None:
    """Moves the region off the device, after waiting for all work there, and gives its memory back.

    `to`: "host", pinned memory, and the disk for what it has no room for; "disk", the file in spill_dir; "nowhere",
    when the bytes are not needed any more. Its tensors must not be used until restore(), but may be freed. Errors:
    SpillwayError, and everything is where it was.
    """
    if serves("evict()"):
        check(tiers().spw_region_evict(index_of(device), encoded(tag), tier(to)))


def restore(tag: str, device: Any = None) -> None:
    """Brings it back, each tensor to its address.

    Errors: SpillwayError, and it stays where it is. Of bytes that the disk has lost it says the addresses: when the
    tensors there are gone, and graphs that were captured into the region, the rest can be brought back.
    """
    if serves("restore()"):
        check(tiers().spw_region_restore(index_of(device), encoded(tag)))


def prefetch(tag: str, device: Any = None) -> None:
    """Begins restore() in the background; restore() waits for it, and says how it went. Errors: SpillwayError."""
    if serves("prefetch()"):
        check(tiers().spw_region_prefetch(index_of(device), encoded(tag)))


def pin(tag: str, device: Any = None) -> None:
    """From here to unpin(), counted, the region cannot leave the device, where it must be. Errors: SpillwayError."""
    if serves("pin()"):
        check(tiers().spw_region_pin(index_of(device), encoded(tag)))


def unpin(tag: str, device: Any = None) -> None:
    """Errors: SpillwayError, when it is not pinned."""
    if serves("unpin()"):
        check(tiers().spw_region_unpin(index_of(device), encoded(tag)))


@contextmanager
def resident(tag: str, device: Any = None) -> Iterator[None]:
    """Inside, the region is on the device and cannot leave; it is restored if need be. Errors: SpillwayError."""
    if not serves("resident()"):
        yield
        return
    index, name = index_of(device), encoded(tag)
    bring_and_pin(index, name)
    try:
        yield
    finally:
        check(tiers().spw_region_unpin(index, name))


def bring_and_pin(index: int, name: bytes) -> None:
    """Another thread may bring it back at the same time: what counts is that it is here."""
    if tiers().spw_region_pin(index, name) == OK:
        return
    try:
        check(tiers().spw_region_restore(index, name))
    except SpillwayError:
        if tiers().spw_region_pin(index, name) != OK:
            raise
    else:
        check(tiers().spw_region_pin(index, name))


def trim(tag: str, index: int) -> None:
    """Gives back what is free of the region, after a wait for the device; not while something is captured."""
    found = PoolId()
    check(tiers().spw_region_pool(index, encoded(tag), ctypes.byref(found)))
    tiers().spw_pool_trim(index, found)


def phase(name: str, device: Any = None) -> int:
    """Says what the program does from here on: "idle", nothing that needs the device soon, or "busy".

    While it is idle and Spillway holds more than the option evict_above of the device, what is kept for later goes back
    and regions with `evictable` above 0 are evicted, until no more than evict_below is held. Answers how many bytes
    went back. When it is busy, what was kept for later and went back is taken from the driver again, as far as there is
    room, so that allocations need not; regions stay where they are. Errors: SpillwayError.
    """
    if not serves("phase()"):
        return 0
    given = ctypes.c_uint64()
    check(tiers().spw_phase(index_of(device), encoded(name, "phase"), ctypes.byref(given)))
    return given.value


def regions(device: Any = None) -> dict[str, dict[str, int]]:
    """What each region of the device holds, by tag: the fields of spw_region_stats by their names.

    Bytes are of whole pages, times in ns. Errors: SpillwayError.
    """
    found: dict[str, dict[str, int]] = {}
    if not serves("regions()"):
        return found

    def visit(tag: bytes, stats: Any, _: object) -> int:
        found[tag.decode()] = values(stats.contents)
        return 0

    check(tiers().spw_region_walk(index_of(device), VISITOR(visit), None))
    return found


def release(tag: str, device: Any = None, bring_back: bool = True) -> None:
    """Forgets the region: its tensors live on, and cannot move any more. One that is away is brought back first.

    `bring_back=False`: it is not, for one that is not needed any more, or cannot be brought back. What is away stays
    away then: its tensors must never be used again, and torch.cuda.empty_cache() gives up the copies of those that are
    gone. Errors: SpillwayError, and it stays a region, where it is.
    """
    if not serves("release()"):
        return
    index, name = index_of(device), encoded(tag)
    if not bring_back:
        check(tiers().spw_region_release(index, name))
        return
    bring_and_pin(index, name)
    try:
        check(tiers().spw_region_release(index, name))
    except SpillwayError:
        check(tiers().spw_region_unpin(index, name))
        raise


def encoded(tag: str, what: str = "tag of a region") -> bytes:
    if not isinstance(tag, str):
        raise SpillwayError(f"{tag!r} is no {what}: use a string")
    return tag.encode()
