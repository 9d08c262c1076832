"""Tensors that live in a region from now on, and the region's way there and back."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .._counters import PoolId
from .._errors import SpillwayError, SpillwayWarning
from .._library import check
from .._pytorch.install import import_torch
from . import away
from .regions import bring_and_pin, encoded, region
from .tiers import INVALID_STATE, OK, tier, tiers

Handle = TypeVar("Handle")
_numbers = itertools.count()


def unique_tag(kind: str) -> str:
    return f"{kind}:{next(_numbers)}"


class MovingTensors:
    """A region on each device that its tensors are on. Not thread-safe.

    Without release(), its regions are given up when it is gone: by then its tensors are as well, or they come back.
    """

    def __init__(self, tag: str, to: str) -> None:
        self.tag = tag
        self.is_out = False
        self._name = encoded(tag)
        self._tier = tier(to, ("host", "disk"))
        self._devices: set[int] = set()
        self._places: dict[int, int] = {}  # by id of the tensor, where it is in the region
        self._storages: list[Any] = []  # weak references to those of the tensors
        self._tensors: list[weakref.ref[Any]] = []
        self._warned = False
        _everyone.add(self)
        if _watch_collections not in gc.callbacks:
            gc.callbacks.append(_watch_collections)
        abandoned = _Abandoned(self._name, self._devices, self._storages, self._tensors)
        weakref.finalize(self, _abandon, abandoned).atexit = False  # type: ignore[misc]

    def adopt(self, tensors: Iterable[Any]) -> None:
        """Moves the bytes of tensors that are whole storages into the region, once; the tensors stay the same objects.
        What others show too stays, and a SpillwayWarning says so.

        One at a time, so that at most the largest is there twice. Errors: SpillwayError, torch.OutOfMemoryError.
        """
        torch = import_torch()
        _settle()
        self._storages[:] = [each for each in self._storages if not each.expired()]
        self._tensors[:] = [each for each in self._tensors if each() is not None]
        for tensor in tensors:
            if not tensor.is_cuda or tensor.nbytes == 0 or self._places.get(id(tensor)) == tensor.data_ptr():
                continue
            if tensor.untyped_storage().nbytes() != tensor.nbytes:
                continue  # a view: what else shows its storage is not known
            for other in list(_everyone):
                if other._places.get(id(tensor)) == tensor.data_ptr():
                    raise SpillwayError(
                        f"a tensor of shape {list(tensor.shape)} is moved by region '{other.tag}' already: "
                        "remove() that first"
                    )
            if users(torch, tensor) > 1:
                shape = list(tensor.shape)
                self._warn(
                    f"a tensor of shape {shape} stays on the device: another shows its memory, as a view does", 4
                )
                continue
            index = tensor.device.index
            self.bring()
            with region(self.tag, index):
                self._devices.add(index)
                tensor.data = tensor.detach().clone()
            self._places[id(tensor)] = tensor.data_ptr()
            self._storages.append(torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage()))
            if all(each() is not tensor for each in self._tensors):
                self._tensors.append(weakref.ref(tensor))

    def holds(self, tensor: Any) -> bool:
        return id(tensor) in self._places

    def evict(self) -> None:
        """Leaves, or gives up that it was fetched. Where there is no room for it, it stays, and a SpillwayWarning says
        so once."""
        was_out = self.is_out
        for index in self._devices:
            status = tiers().spw_region_evict(index, self._name, self._tier)
            if was_out and status == INVALID_STATE:
                continue  # it did not come
            self.is_out |= status == OK
            if status != OK:
                self._warn(f"region '{self.tag}' stays: {last_error()}", 4)
        if self.is_out:
            away.leave(alive(self._tensors), bringer(weakref.ref(self), self._tensors))

    def _warn(self, text: str, level: int) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, SpillwayWarning, stacklevel=level)

    def bring(self) -> None:
        """Errors: SpillwayError."""
        for index in self._devices if self.is_out else ():
            bring_and_pin(index, self._name)
            check(tiers().spw_region_unpin(index, self._name))
        self.is_out = False
        away.come(alive(self._tensors))

    def prefetch(self) -> None:
        """bring() says how it went."""
        for index in self._devices if self.is_out else ():
            tiers().spw_region_prefetch(index, self._name)

    def release(self) -> None:
        """Errors: SpillwayError."""
        self.bring()
        for index in self._devices:
            check(tiers().spw_region_release(index, self._name))
        self._devices.clear()
        self._places.clear()
        self._storages.clear()
        self._tensors.clear()


def users(torch: Any, tensor: Any) -> int:
    """Tensors that show its storage, graphs that keep one included."""
    storage = tensor.untyped_storage()
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count - 1  # without this function's


def alive(tensors: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [tensor for each in tensors if (tensor := each()) is not None]


def bringer(moving: weakref.ref[MovingTensors], tensors: list[weakref.ref[Any]]) -> Callable[[], None]:
    """For whoever uses a tensor that is away, which may outlive what moves it."""

    def bring() -> None:
        found = moving()
        if found is not None:
            found.bring()
        else:
            _settle()
            away.come(alive(tensors))

    return bring


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """A hook that keeps nothing alive. Those of tensors are where the garbage collector does not look."""
    reference = weakref.WeakMethod(method)

    def call(*given: Any) -> None:
        found = reference()
        if found is not None:
            found(*given)

    return call


# An optimizer has the handles that serve it under this name: last of what the object holds, so that they go after its
# tensors.
_OWNED = "_spillway_handles"


def own(owner: Any, handle: object) -> None:
    """The handle lives as long as the owner, whose hooks need not keep it."""
    owner.__dict__.setdefault(_OWNED, []).append(handle)


def disown(owner: Any, handle: object) -> None:
    """Where it is not owned, or the owner is gone (None), that is ok."""
    handles = getattr(owner, _OWNED, [])
    if handle in handles:
        handles.remove(handle)


def end_earlier(handles: Iterable[Any], modules: Iterable[Any]) -> None:
    """Removes those that serve one of the modules: a notebook's cell that runs again has often dropped its handle."""
    asked = set(modules)
    for handle in [each for each in handles if not asked.isdisjoint(each.modules)]:
        handle.remove()


def owned(owner: Any, kind: type[Handle]) -> list[Handle]:
    return [each for each in getattr(owner, _OWNED, []) if isinstance(each, kind)]


class _Abandoned:
    """Regions without a MovingTensors."""

    def __init__(self, name: bytes, devices: set[int], storages: list[Any], tensors: list[weakref.ref[Any]]) -> None:
        self.name, self.devices, self.storages, self.tensors = name, devices, storages, tensors

    def is_unused(self) -> bool:
        return all(storage.expired() for storage in self.storages)

    def settle(self) -> None:
        """Errors: SpillwayError, where tensors that live on cannot come back."""
        is_unused = self.is_unused()
        for index in list(self.devices):
            if not is_unused:
                bring_and_pin(index, self.name)
                check(tiers().spw_region_unpin(index, self.name))
            pool = PoolId()
            check(tiers().spw_region_pool(index, self.name, ctypes.byref(pool)))
            check(tiers().spw_region_release(index, self.name))
            self.devices.discard(index)
            tiers().spw_pool_trim(index, pool)
        away.come(alive(self.tensors))


_abandoned: list[_Abandoned] = []
_is_collecting = False  # garbage


def _abandon(each: _Abandoned) -> None:
    """What is about to go with it is not gone yet; whether anything lives on shows when all of that is done."""
    if each.devices and not sys.is_finalizing():
        _abandoned.append(each)
        if not _is_collecting and each.is_unused():
            _settle()


def _settle() -> None:
    failed = []
    while _abandoned:
        try:
            each = _abandoned.pop()
        except IndexError:
            break  # another thread was faster
        try:
            each.settle()
        except SpillwayError:
            failed.append(each)  # after the next collection
    _abandoned.extend(failed)


def _watch_collections(phase: str, _: dict[str, int]) -> None:
    global _is_collecting
    _is_collecting = phase == "start"
    if not _is_collecting and _abandoned and not sys.is_finalizing():
        _settle()


_everyone: weakref.WeakSet[MovingTensors] = weakref.WeakSet()


def last_error() -> str:
    text: bytes = tiers().spw_last_error()
    return text.decode(errors="replace")


def refuse_capture(torch: Any, what: str) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise SpillwayError(f"{what} cannot move memory while a stream is captured: remove() it first")
