"""Tensors that live in a region from now on, and the region's way there and back."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

from ._errors import SpillwayError, SpillwayWarning
from ._library import check
from ._regions import bring_and_pin, encoded, region
from ._tiers import INVALID_STATE, OK, tier, tiers

_numbers = itertools.count()


def unique_tag(kind: str) -> str:
    return f"{kind}:{next(_numbers)}"


class MovingTensors:
    """A region on each device that its tensors are on. Not thread-safe."""

    def __init__(self, tag: str, to: str) -> None:
        self.tag = tag
        self.is_out = False
        self._name = encoded(tag)
        self._tier = tier(to, ("host", "disk"))
        self._devices: set[int] = set()
        self._places: dict[int, int] = {}  # by id of the tensor, where it is in the region
        self._warned = False
        _everyone.add(self)

    def adopt(self, tensors: Iterable[Any]) -> None:
        """Moves the bytes of tensors that are whole storages into the region, once; the tensors stay the same objects.

        One at a time, so that at most the largest is there twice. Errors: SpillwayError, torch.OutOfMemoryError.
        """
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
            index = tensor.device.index
            self.bring()
            with region(self.tag, index):
                self._devices.add(index)
                tensor.data = tensor.detach().clone()
            self._places[id(tensor)] = tensor.data_ptr()

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
            if status != OK and not self._warned:
                self._warned = True
                warnings.warn(f"region '{self.tag}' stays: {last_error()}", SpillwayWarning, stacklevel=3)

    def bring(self) -> None:
        """Errors: SpillwayError."""
        for index in self._devices if self.is_out else ():
            bring_and_pin(index, self._name)
            check(tiers().spw_region_unpin(index, self._name))
        self.is_out = False

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


_everyone: weakref.WeakSet[MovingTensors] = weakref.WeakSet()


def last_error() -> str:
    text: bytes = tiers().spw_last_error()
    return text.decode(errors="replace")


def refuse_capture(torch: Any, what: str) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise SpillwayError(f"{what} cannot move memory while a stream is captured: remove() it first")
