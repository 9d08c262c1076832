"""The interface of the package torch_memory_saver, over Spillway's regions:

    from spillway.compat.torch_memory_saver import torch_memory_saver

Needs spillway.install() instead of a preloaded library. Unlike there, an error ends nothing: it is a SpillwayError,
and every byte is where it was. What cannot be had here is refused, not ignored.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .. import _install, _regions
from .._counters import PoolId
from .._errors import SpillwayError
from .._library import HERE, check, library
from .._tiers import OK, index_of

DEFAULT_TAG = "default"


# By where the bytes of what is paused go.
NAMES = {"host": "kept", "disk": "disk", "nowhere": "dropped"}


@contextmanager
def configure_subprocess() -> Iterator[None]:
    """Python processes that are started inside have Spillway installed as this one, as soon as they import PyTorch."""
    path = os.pathsep.join(filter(None, [str(HERE / "_bootstrap"), os.environ.get("PYTHONPATH")]))
    mode = _install.installed().mode
    given = {"PYTHONPATH": path, "SPILLWAY_RUN": "plain" if mode == "plain" else "full"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class TorchMemorySaver:
    """Thread-safe but for pause(), resume() and get_cpu_backup() of one tag by several threads."""

    # How the other package gets at the memory. Here it makes no difference.
    hook_mode = "preload"

    def __init__(self) -> None:
        # Regions by tag: what is kept while paused is in one, what is not in another. With their devices.
        self._regions: dict[str, dict[tuple[str, int], str]] = {}
        self._pools: dict[tuple[int, int], tuple[str, int]] = {}  # the regions', by the pools that they are
        self._paused: set[tuple[str, int]] = set()
        self._thread = threading.local()

    @contextmanager
    def region(
        self,
        tag: str = DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """What this thread allocates on the current device inside goes with pause(tag).

        With enable_cpu_backup its bytes come back with resume(tag), with enable_disk_backup from the disk; else only
        the memory does. cpu_backup_backend can be "pinned". Errors: SpillwayError.
        """
        place = self._place(tag, tier_of(enable_cpu_backup, enable_disk_backup, cpu_backup_backend))
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
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """torch.cuda.graph() into the memory of the tag: the graph is valid when that is resumed.

        Graphs of one tag and one pool share memory, as those of one pool do elsewhere; what else is in that pool is not
        paused. Errors: SpillwayError.
        """
        torch = _install.import_torch()
        own = self._graph_pool(tag, tier_of(enable_cpu_backup, False, cpu_backup_backend), pool)
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

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """A copy on the host of a tensor whose bytes are kept while it is paused; None of any other.

        The region is brought back for it and leaves again, which needs room on the device, and time: resume() first to
        read many. With zero_copy it is a copy too, which does not follow the tensor. Errors: SpillwayError.
        """
        found = PoolId()
        # A block is known by its beginning, and its region by its pool.
        status = library().spw_find_owner(ctypes.c_void_p(x.untyped_storage().data_ptr()), None, ctypes.byref(found))
        place = self._pools.get((found.first, found.second)) if status == OK else None
        to = next((group[place] for group in self._regions.values() if place in group), "nowhere")
        if place is None or place not in self._paused or to == "nowhere":
            return None
        _regions.restore(*place)
        self._paused.discard(place)
        try:
            return x.detach().cpu()
        finally:
            _regions.evict(place[0], to, place[1])
            self._paused.add(place)

    def set_disk_backup_dir(self, path: str) -> None:
        """The option spill_dir, for the whole process, before a device is first used. Made if need be.

        Errors: SpillwayError, OSError.
        """
        os.makedirs(path, exist_ok=True)
        check(library().spw_conf_set(f"spill_dir:{path}".encode()))

    @property
    def memory_margin_bytes(self) -> int:
        """Device memory that allocations leave free: the option reserve. It can only be set. Errors: SpillwayError."""
        raise NotImplementedError("memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        check(library().spw_conf_set(f"reserve:{value}".encode()))

    @property
    def retain_cpu_backup(self) -> bool:
        """Pinned memory is kept for the next pause() in any case, the bytes in it never. Errors: SpillwayError."""
        return False

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        if value:
            raise SpillwayError("retain_cpu_backup: bytes that came back are not kept on the host; copy the tensor")

    @property
    def enabled(self) -> bool:
        return bool(_install.installed())

    def _place(self, tag: str, to: str, suffix: str = "") -> tuple[str, int]:
        place = (f"{tag}/{NAMES[to]}{suffix}", index_of(None))
        self._regions.setdefault(tag, {})[place] = to
        if place not in self._pools.values():
            self._pools[_regions.region_pool(*place)] = place
        return place

    def _graph_pool(self, tag: str, to: str, pool: Any) -> tuple[int, int]:
        if pool is None:
            return _regions.region_pool(*self._place(tag, to))
        # What a graph's pool() answers is the region's own.
        place = self._pools.get(tuple(pool))
        if place is None or self._regions.get(tag, {}).get(place) != to:
            place = self._place(tag, to, "/" + ".".join(str(number) for number in pool))
        return _regions.region_pool(*place)

    def _chosen(self, tag: str | None) -> list[tuple[tuple[str, int], str]]:
        """Those whose bytes are kept first: their memory must be there before others take it."""
        groups = self._regions.values() if tag is None else [self._regions.get(tag, {})]
        return sorted((row for group in groups for row in group.items()), key=lambda row: row[1])

    def _opened(self) -> list[tuple[str, int]]:
        if not hasattr(self._thread, "opened"):
            self._thread.opened = []
        opened: list[tuple[str, int]] = self._thread.opened
        return opened


def tier_of(enable_cpu_backup: bool, enable_disk_backup: bool, cpu_backup_backend: str | None) -> str:
    """Errors: SpillwayError."""
    if enable_cpu_backup and enable_disk_backup:
        raise SpillwayError("enable_cpu_backup and enable_disk_backup exclude each other: choose one")
    if cpu_backup_backend not in (None, "pinned"):
        raise SpillwayError(f"cpu_backup_backend={cpu_backup_backend!r} is not known here; allowed: pinned")
    return "host" if enable_cpu_backup else "disk" if enable_disk_backup else "nowhere"


torch_memory_saver = TorchMemorySaver()
