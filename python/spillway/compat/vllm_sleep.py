"""The interface of vLLM's sleeping allocator (vllm.device_allocator.cumem.CuMemAllocator), over Spillway's regions:

    from spillway.compat.vllm_sleep import SleepingAllocator
    allocator = SleepingAllocator.get_instance()

Needs spillway.install().
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .. import _regions
from .._errors import SpillwayError
from .._tiers import index_of

DEFAULT_TAG = "default"
# Woken in this order: the weights must have their memory before a cache that could be smaller takes it.
FIRST_TAG = "weights"


class SleepingAllocator:
    """One for the process. To be used by one thread at a time."""

    _instance: SleepingAllocator | None = None

    def __init__(self) -> None:
        self._tags: dict[tuple[str, int], bool] = {}  # with their devices: whether their bytes are kept
        self._asleep: set[tuple[str, int]] = set()

    @classmethod
    def get_instance(cls) -> SleepingAllocator:
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """What this thread allocates on the current device inside has the tag; what was freed of that is given back at
        the end. Errors: SpillwayError.
        """
        place = (tag or DEFAULT_TAG, index_of(None))
        with _regions.region(*place):
            self._tags.setdefault(place, False)
            yield
        _regions.trim(*place)

    def sleep(self, offload_tags: str | Sequence[str] | None = None) -> None:
        """Gives all tagged memory back to the device: these tags' bytes go to the host, those of others are dropped.

        Without tags it is those of "default" that are kept. Errors: SpillwayError; what slept until then sleeps, and
        a second call goes on with the rest.
        """
        if offload_tags is None:
            kept: Sequence[str] = (DEFAULT_TAG,)
        else:
            kept = (offload_tags,) if isinstance(offload_tags, str) else offload_tags
        # Copies first: when one fails, nothing was dropped.
        for place in sorted(self._tags.keys() - self._asleep, key=lambda place: place[0] not in kept):
            _regions.evict(place[0], "host" if place[0] in kept else "nowhere", place[1])
            self._tags[place] = place[0] in kept
            self._asleep.add(place)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Brings these tags back, or all, at their addresses: weights, then what has its bytes, then the rest.

        Errors: SpillwayError, for want of memory; what is back stays, no byte is lost, and a second call goes on.
        """
        if isinstance(tags, str):
            raise SpillwayError(f"wake_up({tags!r}): give a list of tags, as in ['{tags}']")
        for place in sorted(self._asleep, key=lambda place: (place[0] != FIRST_TAG, not self._tags[place], place)):
            if tags is None or place[0] in tags:
                _regions.restore(*place)
                self._asleep.discard(place)

    def get_current_usage(self) -> int:
        """Bytes of tagged memory, whole pages, whether it sleeps or not. Errors: SpillwayError."""
        kinds = ("device_bytes", "host_bytes", "disk_bytes", "discarded_bytes", "lost_bytes")
        reports = {index: _regions.regions(index) for _, index in self._tags}
        return sum(reports[index].get(tag, {}).get(kind, 0) for tag, index in self._tags for kind in kinds)
