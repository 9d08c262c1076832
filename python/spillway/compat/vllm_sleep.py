"""The interface of vLLM's sleeping allocator (vllm.device_allocator.cumem.CuMemAllocator), over Spillway's regions:

    from spillway.compat.vllm_sleep import SleepingAllocator
    allocator = SleepingAllocator.get_instance()

Needs spillway.install(). A tag is a region on each device. While it sleeps, what is allocated under it is in the next,
which sleeps and wakes with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .._errors import SpillwayError
from .._offload import regions
from .._offload.tiers import index_of
from .._pytorch.install import installed

DEFAULT_TAG = "default"
# Woken in this order: the weights must have their memory before a cache that could be smaller takes it.
FIRST_TAG = "weights"

Place = tuple[str, int]  # a region's tag, and its device


class WakeUpPartialFailure(SpillwayError):  # noqa: N818, the name that callers know
    """Some tags could not be woken, others could. A second wake_up() goes on with them."""

    def __init__(self, awake: Sequence[str], asleep: Sequence[str], first: Exception) -> None:
        what, *report = str(first).split("\n", 1)
        super().__init__("\n".join([f"{what}; asleep still: {', '.join(asleep)}; awake: {', '.join(awake)}", *report]))
        self.awake_tags = list(awake)  # all that are, those that never slept too
        self.failed_tags = list(asleep)  # of those that were to be woken
        self.first_exception = first


class SleepingAllocator:
    """One for the process. To be used by one thread at a time."""

    default_tag = DEFAULT_TAG
    instance: SleepingAllocator | None = None

    def __init__(self) -> None:
        self._tags: dict[Place, str] = {}  # the tags of regions
        self._asleep: dict[Place, bool] = {}  # whether their bytes are kept
        self.current_tag = DEFAULT_TAG

    @staticmethod
    def is_available() -> bool:
        """Whether Spillway serves this process."""
        return bool(installed())

    @classmethod
    def get_instance(cls) -> SleepingAllocator:
        if cls.instance is None:
            cls.instance = cls()
        return cls.instance

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """What this thread allocates on the current device inside has the tag; what was freed of that is given back at
        the end. Errors: SpillwayError.
        """
        before, self.current_tag = self.current_tag, tag or DEFAULT_TAG
        try:
            place = self._live_place(self.current_tag)
            with regions.region(*place):
                self._tags.setdefault(place, self.current_tag)
                yield
            regions.trim(*place)
        finally:
            self.current_tag = before

    def sleep(self, offload_tags: str | Sequence[str] | None = None) -> None:
        """Gives all tagged memory back to the device: these tags' bytes go to the host, those of others are dropped.

        Without tags it is those of "default" that are kept. Errors: SpillwayError; what slept until then sleeps, and
        a second call goes on with the rest.
        """
        kept = (DEFAULT_TAG,) if offload_tags is None else listed(offload_tags)
        # Copies first: when one fails, nothing was dropped.
        for place in sorted(self._tags.keys() - self._asleep.keys(), key=lambda place: self._tags[place] not in kept):
            self._put_to_sleep(place, self._tags[place] in kept)

    def discard(self, tags: str | Sequence[str]) -> None:
        """Gives the memory of these tags back, and drops its bytes. What sleeps already keeps what it has.

        Errors: SpillwayError; a second call goes on.
        """
        for place in sorted(self._tags.keys() - self._asleep.keys()):
            if self._tags[place] in listed(tags):
                self._put_to_sleep(place, False)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Brings these tags back, or all, at their addresses: weights, then what has its bytes, then the rest. One that
        is awake stays so.

        Errors: SpillwayError; WakeUpPartialFailure, where regions have no room or cannot be read: the others are back,
        no byte is lost, and a second call goes on.
        """
        if isinstance(tags, str):
            raise SpillwayError(f"wake_up({tags!r}): give a list of tags, as in ['{tags}']")
        failures: dict[Place, SpillwayError] = {}
        for place in sorted(self._asleep, key=self._order):
            if tags is not None and self._tags[place] not in tags:
                continue
            try:
                regions.restore(*place)
            except SpillwayError as problem:
                failures[place] = problem
            else:
                del self._asleep[place]
        if failures:
            failed = unique(self._tags[place] for place in failures)
            sleeping = {self._tags[place] for place in self._asleep}
            awake = unique(tag for tag in self._tags.values() if tag not in sleeping)
            first = next(iter(failures.values()))
            raise WakeUpPartialFailure(awake, failed, first) from first

    def get_current_usage(self) -> int:
        """Bytes of tagged memory, whole pages, whether it sleeps or not. Errors: SpillwayError."""
        kinds = ("device_bytes", "host_bytes", "disk_bytes", "discarded_bytes", "lost_bytes")
        reports = {index: regions.regions(index) for _, index in self._tags}
        return sum(reports[index].get(tag, {}).get(kind, 0) for tag, index in self._tags for kind in kinds)

    def _live_place(self, tag: str) -> Place:
        index = index_of(None)
        numbered = (f"{tag}:{number}" for number in itertools.count(2))
        places = ((name, index) for name in itertools.chain([tag], numbered))
        # A region that is another tag's by name serves that alone.
        return next(each for each in places if each not in self._asleep and self._tags.get(each, tag) == tag)

    def _put_to_sleep(self, place: Place, keeps: bool) -> None:
        regions.evict(place[0], "host" if keeps else "nowhere", place[1])
        self._asleep[place] = keeps

    def _order(self, place: Place) -> tuple[bool, bool, Place]:
        return self._tags[place] != FIRST_TAG, not self._asleep[place], place


def listed(tags: str | Sequence[str]) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)


def unique(tags: Iterator[str]) -> list[str]:
    """In their order."""
    return list(dict.fromkeys(tags))
