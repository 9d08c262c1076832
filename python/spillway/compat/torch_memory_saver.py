"""The interface of the package torch_memory_saver, over Spillway's regions:

    from spillway.compat.torch_memory_saver import torch_memory_saver

Needs spillway.install() instead of a preloaded library. Unlike there, an error ends nothing: it is a SpillwayError,
and every byte is where it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .. import _install, _regions
from .._errors import SpillwayError
from .._library import check, library
from .._tiers import index_of

DEFAULT_TAG = "default"


class TorchMemorySaver:
    """Thread-safe but for pause() and resume() of one tag by several threads."""

    def __init__(self) -> None:
        # Regions by tag: what is kept while paused is in one, what is not in another. With their devices.
        self._regions: dict[str, dict[tuple[str, int], str]] = {}
        self._paused: set[tuple[str, int]] = set()
        self._thread = threading.local()

    @contextmanager
    def region(self, tag: str = DEFAULT_TAG, enable_cpu_backup: bool = False) -> Iterator[None]:
        """What this thread allocates on the current device inside goes with pause(tag).

        With enable_cpu_backup its bytes come back with resume(tag); else only the memory does. Errors: SpillwayError.
        """
        place = self._place(tag, enable_cpu_backup)
        with _regions.region(*place):
            self._opened().append(place)
            try:
                yield
            finally:
                self._opened().pop()

    @contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = DEFAULT_TAG,
        enable_cpu_backup: bool = False,
    ) -> Iterator[None]:
        """torch.cuda.graph() into the memory of the tag: the graph is valid when that is resumed.

        Errors: SpillwayError, when a pool is given: the tag's own is used.
        """
        if pool is not None:
            raise SpillwayError("cuda_graph(pool=...) cannot be paused: leave pool out, and give graphs the same tag")
        torch = _install.import_torch()
        own = _regions.region_pool(*self._place(tag, enable_cpu_backup))
        with torch.cuda.graph(cuda_graph, pool=own, stream=stream, capture_error_mode=capture_error_mode):
            yield

    @contextmanager
    def disable(self) -> Iterator[None]:
        """Inside a region: what is allocated here is not the region's. Errors: SpillwayError."""
        opened = list(self._opened())
        if not opened:
            raise SpillwayError("disable() is for the inside of a region()")
        for tag, index in reversed(opened):
            check(library().spw_region_end(index, tag.encode()))
        try:
            yield
        finally:
            for tag, index in opened:
                check(library().spw_region_begin(index, tag.encode()))

    def pause(self, tag: str | None = None) -> None:
        """Gives the memory of the tag back to the device, or that of all tags. What is paused stays paused.

        Errors: SpillwayError. What was paused until then stays so; again goes on with the rest.
        """
        for place, to in self._chosen(tag):
            if place not in self._paused:
                _regions.evict(place[0], to, place[1])
                self._paused.add(place)

    def resume(self, tag: str | None = None) -> None:
        """Brings it back, to its addresses. Errors: SpillwayError, and no byte is lost; again goes on with the rest."""
        for place, _ in self._chosen(tag):
            if place in self._paused:
                _regions.restore(*place)
                self._paused.discard(place)

    @property
    def enabled(self) -> bool:
        return bool(_install.installed())

    def _place(self, tag: str, has_backup: bool) -> tuple[str, int]:
        place = (f"{tag}/{'kept' if has_backup else 'dropped'}", index_of(None))
        self._regions.setdefault(tag, {})[place] = "host" if has_backup else "nowhere"
        return place

    def _chosen(self, tag: str | None) -> list[tuple[tuple[str, int], str]]:
        """Those whose bytes are kept first: their memory must be there before others take it."""
        groups = self._regions.values() if tag is None else [self._regions.get(tag, {})]
        return sorted((row for group in groups for row in group.items()), key=lambda row: row[1])

    def _opened(self) -> list[tuple[str, int]]:
        if not hasattr(self._thread, "opened"):
            self._thread.opened = []
        opened: list[tuple[str, int]] = self._thread.opened
        return opened


torch_memory_saver = TorchMemorySaver()
