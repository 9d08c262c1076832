"""The interface of the package torch_memory_saver, over Spillway's regions:

    from spillway.compat.torch_memory_saver import torch_memory_saver

Needs spillway.install() before it is imported, instead of a preloaded library. The environment variables TMS_* count
when it is imported. Unlike there, an error ends nothing: it is a SpillwayError, and every byte is where it was. What
cannot be had here is refused, not ignored.

A tag is one region for each of the ways in which its bytes are kept, and for each device. While one of them is paused,
what is allocated under the tag is in the next, which is paused and resumed with it.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from .. import _counters
from .._counters import PoolId
from .._errors import SpillwayError
from .._library import HERE, check, library
from .._offload import regions
from .._offload.tiers import empty_host_cache, index_of, serves, tiers
from .._pytorch.install import import_torch, installed
from ._saver_backups import Backups, Place, pool_at, read, size_at
from ._saver_settings import DEFAULT_TAG, Settings, chosen, flag, from_environment
from ._saver_symbols import Implementation


@contextmanager
def configure_subprocess() -> Iterator[None]:
    """Python processes that are started inside have Spillway installed as this one, as soon as they import PyTorch."""
    path = os.pathsep.join(filter(None, [str(HERE / "_bootstrap"), os.environ.get("PYTHONPATH")]))
    mode = installed().mode
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
    """Thread-safe but for pause(), resume() and get_cpu_backup() by several threads at a time."""

    # How the other package gets at the memory. Here it makes no difference.
    hook_mode = "preload"

    def __init__(self) -> None:
        """Errors: SpillwayError, of the environment too."""
        self._first = from_environment()  # what each thread begins with
        self._retains = flag("TMS_RETAIN_CPU_BACKUP")
        self._regions: dict[str, dict[Place, Settings]] = {}  # by tag
        self._pools: dict[tuple[int, int, int], Place] = {}  # the regions', by their devices and pools
        self._paused: set[Place] = set()
        self._backups = Backups()
        self._thread = _Thread(self._first)
        self._impl = Implementation(self)
        if folder := os.environ.get("TMS_DISK_BACKUP_DIR"):
            self.set_disk_backup_dir(folder)
        if self._first.is_on and serves("TMS_INIT_ENABLE"):
            self._set_default(())

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
        the memory does. cpu_backup_backend is "pinned", or "mmap": then resume() gives the host memory back. Errors:
        SpillwayError.
        """
        backend = self.settings().backend
        with self._inside(chosen(tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend, backend)):
            yield

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
        torch = import_torch()
        settings = chosen(tag, enable_cpu_backup, False, cpu_backup_backend, self.settings().backend)
        own = self._graph_pool(settings, pool) if serves("cuda_graph()") else pool
        with torch.cuda.graph(cuda_graph, pool=own, stream=stream, capture_error_mode=capture_error_mode):
            yield

    @contextmanager
    def disable(self) -> Iterator[None]:
        """Inside a region: what is allocated here is not the region's. Errors: SpillwayError.

        Where TMS_INIT_ENABLE is set, what of it is free at the end goes back to the device.
        """
        now = self.settings()
        if not now.is_on:
            raise SpillwayError("disable() is for the inside of a region()")
        try:
            with self._inside(replace(now, is_on=False)):
                yield
        finally:
            if self._first.is_on and serves("disable()"):
                # Nothing else is allocated outside of all regions. Not while something is captured.
                tiers().spw_pool_trim(index_of(None), PoolId())

    def pause(self, tag: str | None = None) -> None:
        """Gives the memory of the tag back to the device, or that of all tags. What is paused stays paused.

        Regions that this thread has open are left for it, and what it allocates in them afterwards is live. Errors:
        SpillwayError, as where another thread has one open. What was paused until then stays so; again goes on with the
        rest.
        """
        if not serves("pause()"):
            return
        leaving = [place for place, _ in self._chosen(tag) if place not in self._paused]
        with self._outside(leaving):
            for place, settings in self._chosen(tag):
                if place in leaving:
                    self._leave(place, settings)

    def resume(self, tag: str | None = None) -> None:
        """Brings it back, to its addresses. Errors: SpillwayError, and no byte is lost; again goes on with the rest."""
        if not serves("resume()"):
            return
        with self._outside():
            for place, settings in self._chosen(tag):
                if place not in self._paused:
                    continue
                self._backups.before_resume(place, self._retains and settings.keeps_on_host)
                regions.restore(*place)
                self._paused.discard(place)
                if settings.kind == "mmap":
                    empty_host_cache()

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """A tensor on the host with the bytes that are kept of `x` while it is paused; None of any other.

        With zero_copy it shows the memory of the copy, which is read anew after each pause(), and is there until
        resume(). With retain_cpu_backup it is there afterwards too, with the bytes of the last pause(). The device is
        not used. Errors: SpillwayError.
        """
        storage = x.untyped_storage()
        address = storage.data_ptr()  # a block is known by its beginning, and its region by its pool
        place = self._pools.get((x.device.index, *pool_at(address)))
        settings = next((group[place] for group in self._regions.values() if place in group), None)
        if place is None or settings is None or settings.to == "nowhere":
            return None
        if place not in self._paused:
            copy = self._backups.retained(place, address)
        elif zero_copy:
            copy = self._backups.of(place, address, size_at(address))
        else:
            torch = import_torch()
            copy = torch.empty(size_at(address), dtype=torch.uint8)
            read(place, address, copy.numel(), copy.data_ptr())
        if copy is None:
            return None
        shown = copy.view(x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())
        return shown if zero_copy else shown.clone()

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
        """Whether resume() leaves copies on the host for get_cpu_backup(), until one that does not, or until the
        tensor is freed. Pinned memory is kept for the next pause() in any case.
        """
        return self._retains

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._retains = bool(value)

    @property
    def enabled(self) -> bool:
        return bool(installed())

    def settings(self) -> Settings:
        """What this thread allocates into."""
        return self._thread.settings

    def set_settings(self, settings: Settings) -> None:
        """From here on. Errors: SpillwayError, and nothing changes."""
        before = self._thread.settings, self._thread.index
        if not serves("a region"):
            self._thread.settings = settings
            return
        index = index_of(None) if settings.is_on and settings != self._first else -1
        self._close()
        self._thread.settings, self._thread.index = settings, index
        try:
            self._open()
        except SpillwayError:
            self._thread.settings, self._thread.index = before
            self._open()
            raise

    def _ensure_initialized(self) -> None:
        """Others call it."""

    @contextmanager
    def _inside(self, settings: Settings) -> Iterator[None]:
        before = self.settings()
        self.set_settings(settings)
        try:
            yield
        finally:
            self.set_settings(before)

    # ---- What this thread has open: one region, or none

    def _open(self) -> None:
        thread, settings = self._thread, self._thread.settings
        if settings.is_on and settings != self._first:
            place = self._live_place(settings.checked(), thread.index)
            check(tiers().spw_region_begin(place[1], regions.encoded(place[0])))
            thread.opened = place
        elif self._first.is_on and not settings.is_on:
            check(library().spw_region_begin_none())
            thread.is_out = True

    def _close(self) -> None:
        thread = self._thread
        if thread.opened is not None:
            check(tiers().spw_region_end(thread.opened[1], regions.encoded(thread.opened[0])))
            thread.opened = None
        if thread.is_out:
            check(library().spw_region_end_none())
            thread.is_out = False

    @contextmanager
    def _outside(self, leaving: list[Place] | None = None) -> Iterator[None]:
        """Nothing is open for this thread inside, nor the default of all; afterwards what lives is."""
        self._close()
        try:
            if self._first.is_on:
                self._set_default(leaving or ())
            yield
        finally:
            try:
                if self._first.is_on:
                    self._set_default(())
            finally:
                self._open()

    # ---- Which regions there are

    def _set_default(self, leaving: list[Place] | tuple[Place, ...]) -> None:
        """What no thread has a region for goes into one that is neither paused nor about to be."""
        gone = {tag for tag, _ in self._paused.union(leaving)}
        tag = next(tag for tag in names(self._first, "/all") if tag not in gone)
        check(tiers().spw_region_set_default(regions.encoded(tag)))

    def _note_default(self) -> None:
        """On devices that were used by now, the regions that serve all threads."""
        if not self._first.is_on:
            return
        for index in range(import_torch().cuda.device_count()):
            if not _counters.pool_bytes(index):
                continue
            first = next(names(self._first, "/all"))
            for tag in regions.regions(index):
                if tag == first or tag.startswith(f"{first}:"):
                    self._note((tag, index), self._first)

    def _note(self, place: Place, settings: Settings) -> Place:
        self._regions.setdefault(settings.tag, {})[place] = settings
        if place not in self._pools.values():
            self._pools[(place[1], *regions.region_pool(*place))] = place
        return place

    def _live_place(self, settings: Settings, index: int, suffix: str = "") -> Place:
        """The first region of its kind that is not paused."""
        tags = names(settings, suffix)
        return self._note(next((tag, index) for tag in tags if (tag, index) not in self._paused), settings)

    def _graph_pool(self, settings: Settings, pool: Any) -> tuple[int, int]:
        index = index_of(None)
        if pool is None:
            return regions.region_pool(*self._live_place(settings, index))
        # What a graph's pool() answers is the region's own.
        place = self._pools.get((index, *pool))
        known = self._regions.get(settings.tag, {}).get(place) if place is not None else None
        if place is None or known is None or known.kind != settings.kind or place in self._paused:
            suffix = "/" + ".".join(str(number) for number in pool)
            place = self._live_place(settings, index, suffix)
        return regions.region_pool(*place)

    def _chosen(self, tag: str | None) -> list[tuple[Place, Settings]]:
        """Those whose bytes are kept first: their memory must be there before others take it."""
        self._note_default()
        groups = self._regions.values() if tag is None else [self._regions.get(tag, {})]
        return sorted((row for group in groups for row in group.items()), key=lambda row: row[1].to)

    def _leave(self, place: Place, settings: Settings) -> None:
        if settings.keeps_on_host:
            self._backups.before_pause(place, regions.region_pool(*place))
        regions.evict(place[0], settings.to, place[1])
        self._paused.add(place)


class _Thread(threading.local):
    """What a thread allocates into, and what it has open for that."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.index = -1
        self.opened: Place | None = None
        self.is_out = False


def names(settings: Settings, suffix: str) -> Iterator[str]:
    """The tags of the regions of one kind: each serves while those before it are paused."""
    first = f"{settings.tag}/{settings.kind}{suffix}"
    return itertools.chain([first], (f"{first}:{number}" for number in itertools.count(2)))


torch_memory_saver = TorchMemorySaver()
