"""Host copies of what torch_memory_saver paused, for those who look at them.

What a region keeps on the host is in pieces, and gone when it is back. A copy here is one run of bytes for each block,
made when it is asked for, or for all when they are to outlast resume().
"""

from __future__ import annotations

import ctypes
from typing import Any

from .. import _counters
from .._counters import Block, PoolId
from .._library import check, library
from .._offload.regions import encoded
from .._offload.tiers import OK, tiers
from .._pytorch.install import import_torch

Place = tuple[str, int]  # a region's tag, and its device


class Backups:
    """Of the regions of one process. To be used by one thread at a time."""

    def __init__(self) -> None:
        self._sizes: dict[Place, dict[int, int]] = {}  # of the blocks that were paused, by address
        self._copies: dict[Place, dict[int, Any]] = {}  # by address, tensors of bytes
        self._fresh: set[tuple[Place, int]] = set()  # copies of this pause

    def before_pause(self, place: Place, pool: tuple[int, int]) -> None:
        """Copies of the pause before keep their addresses, and are read anew when they are asked for."""
        rows = _counters.segments(place[1], lambda other: other == pool)
        blocks = (block for row in rows for block in row["blocks"] if block["state"] == "active_allocated")
        self._sizes[place] = {block["address"]: block["size"] for block in blocks}
        self._fresh -= {key for key in self._fresh if key[0] == place}
        self._forget_freed(place)

    def before_resume(self, place: Place, retains: bool) -> None:
        """With `retains` every block that lives has a copy afterwards, else none. Errors: SpillwayError."""
        sizes = self._sizes.pop(place, {})
        if not retains:
            self._copies.pop(place, None)
            return
        for address, size in sizes.items():
            if size_at(address) == size:
                self.of(place, address, size)
        self._forget_freed(place)

    def of(self, place: Place, address: int, size: int) -> Any:
        """The bytes of a block that is paused, at the address that an earlier copy had. Errors: SpillwayError."""
        copies = self._copies.setdefault(place, {})
        if (place, address) not in self._fresh:
            copy = copies.get(address)
            if copy is None or copy.numel() != size:
                copy = import_torch().empty(size, dtype=import_torch().uint8)
            read(place, address, size, copy.data_ptr())
            copies[address] = copy
            self._fresh.add((place, address))
        return copies[address]

    def retained(self, place: Place, address: int) -> Any:
        """Of a block that was resumed; None where no copy was retained."""
        self._forget_freed(place)
        return self._copies.get(place, {}).get(address)

    def _forget_freed(self, place: Place) -> None:
        copies = self._copies.get(place, {})
        for address in [address for address, copy in copies.items() if size_at(address) != copy.numel()]:
            del copies[address]


def read(place: Place, address: int, size: int, out: int) -> None:
    """Bytes of a region that is elsewhere, into host memory. Errors: SpillwayError."""
    tag, index = place
    check(tiers().spw_region_read(index, encoded(tag), address, size, out))


def size_at(address: int) -> int:
    """Of the block that begins there; 0 where none does."""
    block, device = Block(), ctypes.c_int()
    status = library().spw_find_block(ctypes.c_void_p(address), ctypes.byref(block), ctypes.byref(device))
    return int(block.bytes) if status == OK and block.state == 1 else 0


def pool_at(address: int) -> tuple[int, int]:
    """Of the block that begins there; that of no region where none does."""
    found = PoolId()
    status = library().spw_find_owner(ctypes.c_void_p(address), None, ctypes.byref(found))
    return (found.first, found.second) if status == OK else (0, 0)
