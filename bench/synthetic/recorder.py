"""Writes down what a program that never ran would have asked of PyTorch's allocator.

A Recorder hands out addresses and notes every allocation and free as an event of torch.cuda.memory._dump_snapshot();
write() packs the result as gzip'd pickle. Addresses are never used twice: where an allocator puts blocks is what a
replay measures, so a trace says nothing about it. Sizes are those that the program asks for, to the byte.
"""

from __future__ import annotations

import gzip
import io
import os
import pathlib
import pickle
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
COMPUTE = 0
SEGMENT_ALIGNMENT = 512
FIRST_ADDRESS = 0x7F0000000000
FIRST_TIME_US = 1_700_000_000_000_000


def round_up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit


class Recorder:
    """What is allocated while `recording` is off is live before the first event."""

    def __init__(self) -> None:
        self.recording = False
        self.events: list[dict[str, Any]] = []
        self.live: dict[int, tuple[int, int]] = {}
        self._next_address = FIRST_ADDRESS
        self._requested: set[int] = set()
        self._allocations = 0
        # For each stream that holds blocks of others: until which allocation it holds what, in the order of its work.
        self._held: dict[int, list[tuple[int, int]]] = {}

    def _note(self, action: str, address: int, size: int, stream: int) -> None:
        if self.recording:
            time = FIRST_TIME_US + 10 * len(self.events)
            self.events.append(
                {"action": action, "addr": address, "size": size, "stream": stream, "time_us": time, "frames": []}
            )

    def allocate(self, size: int, stream: int = COMPUTE) -> int:
        self._allocations += 1
        if self._held:
            self._complete_what_is_due()
        address = self._next_address
        self._next_address += round_up(size, SEGMENT_ALIGNMENT)
        self.live[address] = (size, stream)
        self._note("alloc", address, size, stream)
        return address

    def size(self, address: int) -> int:
        return self.live[address][0]

    def request_free(self, address: int) -> None:
        """Another stream still works on the block; complete() ends that."""
        size, stream = self.live[address]
        self._requested.add(address)
        self._note("free_requested", address, size, stream)

    def complete(self, address: int) -> None:
        size, stream = self.live.pop(address)
        self._requested.discard(address)
        self._note("free_completed", address, size, stream)

    def free(self, address: int) -> None:
        self.request_free(address)
        self.complete(address)

    def free_behind(self, address: int, user: int, lag: int) -> None:
        """Frees a block that `user`, another stream, was told of with record_stream.

        The free completes when that stream has come past its last use. PyTorch notices in an allocation: here the one
        `lag` allocations from now, or later where the stream still holds a block freed earlier.
        """
        self.request_free(address)
        held = self._held.setdefault(user, [])
        due = self._allocations + lag
        held.append((max(due, held[-1][0]) if held else due, address))

    def wait_until_free(self, address: int, user: int) -> None:
        """The host waits until the stream has come past its last use of the block."""
        held = self._held.get(user, [])
        while address in self.live and held:
            self.complete(held.pop(0)[1])

    def _complete_what_is_due(self) -> None:
        for held in self._held.values():
            while held and held[0][0] <= self._allocations:
                self.complete(held.pop(0)[1])

    def _segments(self) -> list[dict[str, Any]]:
        """One segment for each live block: where a recording allocator put it is of no interest."""
        rows = []
        for address, (size, stream) in sorted(self.live.items()):
            total = round_up(size, SEGMENT_ALIGNMENT)
            state = "active_pending_free" if address in self._requested else "active_allocated"
            block = {"address": address, "size": total, "requested_size": size, "state": state, "frames": []}
            rows.append(
                {
                    "device": 0,
                    "address": address,
                    "total_size": total,
                    "allocated_size": total,
                    "active_size": total,
                    "requested_size": size,
                    "stream": stream,
                    "segment_type": "small" if size <= MIB else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [block],
                }
            )
        return rows

    def write(self, path: pathlib.Path) -> None:
        """Puts the whole file in place at once, or leaves what was there. Equal recordings are equal bytes."""
        snapshot = {
            "segments": self._segments(),
            "device_traces": [self.events],
            "allocator_settings": {},
            "external_annotations": [],
        }
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as out:
            out.write(pickle.dumps(snapshot, protocol=4))
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            unfinished.write_bytes(packed.getvalue())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
