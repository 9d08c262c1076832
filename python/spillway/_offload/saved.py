"""Saved tensors of one device that are elsewhere until autograd asks for them.

A storage is put away once, however many tensors of it are saved, and each gets its view back. What is asked for
brings what is asked for next on its way: schedule.py. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from .._errors import SpillwayError
from .._pytorch.install import import_torch
from . import eight_bits as packing
from . import stashes
from .clock import Clock
from .holding import Holding
from .schedule import Schedule, Use, is_early, is_late
from .tiers import free_bytes


@dataclass
class StepStats:
    """Of one forward pass and the backward passes through it."""

    stashed: int = 0  # storages that were copied out
    stashed_bytes: int = 0  # that were copied: half, or a quarter, of a storage at eight bits for each number
    fetched_bytes: int = 0
    away_bytes: int = 0  # not on the device when the first was asked for
    kept: int = 0  # that stayed: needed too soon, or there was no room for them elsewhere
    kept_bytes: int = 0
    refused: int = 0  # of those, for want of room
    reused: int = 0  # were asked for while the program still held them
    hits: int = 0  # were back when they were needed
    late: int = 0  # were not
    early: int = 0  # of the hits: back more than twice their copy's time before
    waits: int = 0  # of the forward pass for copies out
    wait_ns: float = 0.0


class Probe:
    """A tensor's version counter without its memory."""

    _empty: dict[tuple[Any, Any], Any] = {}

    def __init__(self, tensor: Any) -> None:
        torch = import_torch()
        kind = (tensor.dtype, tensor.device)
        if kind not in self._empty:
            self._empty[kind] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self._tensor = tensor.detach()
        self._tensor.data = self._empty[kind]
        self.at_save = self.now

    @property
    def now(self) -> int:
        version: int = self._tensor._version
        return version


def check_version(now: int, at_save: int, what: str) -> None:
    """Hooks take PyTorch's own check away."""
    if now != at_save:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{what}] is at version {now}; expected version {at_save} instead."
        )


class Entry:
    """One storage that was saved in one step."""

    def __init__(self, key: Hashable, tensor: Any, step: Step) -> None:
        torch = import_torch()
        storage = tensor.untyped_storage()
        self.index: int = tensor.device.index
        self.use = Use(key, storage.nbytes())
        self.step = step
        self.probe = Probe(tensor)
        # Keeps the address of the storage's record its own, though not its bytes.
        self.original = torch.multiprocessing.reductions.StorageWeakRef(storage)
        self.stays: Any = None  # the storage, when it does not go
        self.stash: stashes.Stash | None = None
        self.eight_bits: Any = None  # the type of its numbers, where only eight bits of each are kept
        self.back: Any = None  # the storage while somebody has not asked for it yet
        self.back_ref: Any = None
        self.came: Any = None  # the event after which it has its bytes, where it was copied back
        self.waiting = 0  # saved tensors that were not asked for
        self.was_asked = False
        self.is_again = False  # asked for once more: no matter of the schedule's

    def serves(self, tensor: Any, eight_bits: bool) -> bool:
        """Whether what is kept is enough for another saved tensor of the storage."""
        is_exact = self.eight_bits is None or self.stash is None
        return self.probe.now == self.probe.at_save and (is_exact or (eight_bits and tensor.dtype == self.eight_bits))

    @property
    def is_coming(self) -> bool:
        return self.stash is not None and self.stash.is_coming

    def alive(self) -> Any:
        """The storage where it is on the device anyway, else None."""
        for held in (self.stays, self.back):
            if held is not None:
                return held
        for reference in (self.back_ref, self.original):
            storage = None
            if reference is not None:
                storage = import_torch().UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is not None and storage.nbytes() == self.use.size:
                return storage
        return None


@dataclass
class Packed:
    """What autograd keeps instead of a saved tensor."""

    entry: Entry
    probe: Probe
    dtype: Any
    place: tuple[int, tuple[int, ...], tuple[int, ...]]  # storage offset, size, strides


@dataclass
class Step:
    entries: weakref.WeakValueDictionary[Hashable, Entry] = field(default_factory=weakref.WeakValueDictionary)
    saved: list[Hashable] = field(default_factory=list)
    asked: list[Use] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)  # how many were saved under each
    marks: dict[Hashable, dict[str, Any]] = field(default_factory=dict)
    prefetched: set[Hashable] = field(default_factory=set)
    ahead_bytes: int = 0  # on their way and not asked for yet
    ahead_limit: int = 0
    stats: StepStats = field(default_factory=StepStats)
    holding: Holding[weakref.ref[stashes.Stash]] | None = None  # None: nothing waits


class SavedTensors:
    def __init__(
        self,
        index: int,
        tier: int,
        clock: Clock,
        is_timed: bool,
        most_wait: float,
        finished: Callable[[StepStats], None],
    ):
        self.schedule = Schedule(most_wait)
        self._index = index
        self._tier = tier
        self._clock = clock
        self._is_timed = is_timed  # whether a copy back is on its stream at once
        self._finished = finished
        self._by_storage: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()
        self._step = Step()
        self._unread: deque[Step] = deque()  # steps whose marks the device has not passed

    # ---- Out

    def pack(self, name: str, tensor: Any, eight_bits: bool) -> Packed:
        """Errors: SpillwayError."""
        if self._step.asked or (self._step.saved and not self._step.entries):
            self.end_step()
        entry = self._by_storage.get(tensor.untyped_storage()._cdata)
        if entry is None or not entry.serves(tensor, eight_bits):
            entry = self._put_away(name, tensor, eight_bits)
        entry.waiting += 1
        return Packed(entry, Probe(tensor), tensor.dtype, (tensor.storage_offset(), tensor.shape, tensor.stride()))

    def _put_away(self, name: str, tensor: Any, eight_bits: bool) -> Entry:
        torch = import_torch()
        step = self._step
        number = step.names.get(name, 0)
        step.names[name] = number + 1
        entry = Entry((name, number), tensor, step)
        key, stats = entry.use.key, step.stats
        self._mark(entry, "saved", self._compute())
        if eight_bits and packing.serves(tensor):
            entry.eight_bits = tensor.dtype
            # What stays is planned with this too: it might go the next time.
            entry.use.packed = packing.packed_bytes(entry.use.size // tensor.element_size())
        if key not in self.schedule.stays:
            with contextlib.suppress(torch.OutOfMemoryError):
                source = tensor if entry.eight_bits is None else packing.pack(packing.numbers_of(tensor))
                entry.stash = stashes.put(source, self._tier)
            entry.use.is_refused = entry.stash is None
            stats.refused += entry.use.is_refused
        if entry.stash is None:
            entry.stays = tensor.untyped_storage()
            stats.kept += 1
            stats.kept_bytes += entry.use.size
        else:
            self._mark(entry, "out", stashes.streams(self._index)[0])
            stats.stashed += 1
            stats.stashed_bytes += entry.use.carried
        step.saved.append(key)
        step.entries[key] = entry
        self._by_storage[tensor.untyped_storage()._cdata] = entry
        self._hold(entry)
        return entry

    def _hold(self, entry: Entry) -> None:
        """Work waits for copies out where more is held than planned; in a step that is not as planned, for none."""
        step, size = self._step, entry.use.size
        if len(step.saved) == 1:
            step.holding = Holding(self.schedule.most_held)
        is_as_planned = self.schedule.is_as_planned(entry.use.key, size, entry.use.is_refused)
        if step.holding is None or not is_as_planned:
            step.holding = None
            return
        leaving = step.holding.add(size, None if entry.stash is None else weakref.ref(entry.stash))
        stash = None if leaving is None else leaving()
        if stash is not None:
            self._mark(entry, "paused", self._compute())
            stash.wait_until_copied()
            self._mark(entry, "resumed", self._compute())
            step.stats.waits += 1

    # ---- Back

    def unpack(self, packed: Packed) -> Any:
        """Errors: SpillwayError (the bytes cannot be had), torch.OutOfMemoryError, RuntimeError (modified since)."""
        torch = import_torch()
        entry = packed.entry
        check_version(packed.probe.now, packed.probe.at_save, f"{packed.dtype} {list(packed.place[1])}")
        is_first = not entry.was_asked
        entry.is_again = not is_first
        if is_first:
            self._note_asked(entry)
        storage = entry.alive()
        if storage is None:
            storage = self._bring(entry)
        else:
            if entry.came is not None:
                # On another stream, perhaps.
                self._compute().wait_event(entry.came)
                stashes.use(storage)
            if is_first and entry.stash is not None:
                entry.step.stats.reused += 1
                entry.use.is_held = not entry.is_coming
                # The program may change it when this backward pass is done.
                entry.stash.wait_until_copied()
            self._prefetch_after(entry)
        if storage.nbytes() < entry.use.size:
            raise SpillwayError(
                f"a saved tensor cannot be had for the backward pass ({packed.dtype} {list(packed.place[1])}): "
                f"the program made its storage smaller since, {entry.use.size} bytes then and {storage.nbytes()} now"
            )
        entry.waiting = max(0, entry.waiting - 1)
        entry.back = storage if entry.waiting > 0 and entry.stays is None else None
        entry.back_ref = torch.multiprocessing.reductions.StorageWeakRef(storage)
        with torch.cuda.device(self._index):
            view = torch.empty(0, dtype=packed.dtype, device=torch.device("cuda", self._index))
        view.set_(storage, *packed.place)
        return view

    def _note_asked(self, entry: Entry) -> None:
        step = entry.step
        if not step.asked:
            step.stats.away_bytes = sum(
                each.use.size for each in list(step.entries.values()) if each.stash is not None and each.alive() is None
            )
            # The rest is the program's, for what it computes with them.
            step.ahead_limit = free_bytes(self._index) // 2
        if entry.use.key in step.prefetched:
            step.ahead_bytes -= entry.use.carried
        entry.was_asked = True
        step.asked.append(entry.use)
        self._mark(entry, "needed", self._compute())

    def _bring(self, entry: Entry) -> Any:
        assert entry.stash is not None
        if not entry.is_coming:
            if not entry.is_again:
                entry.step.prefetched.discard(entry.use.key)
            self._begin(entry)
        self._prefetch_after(entry)
        storage = entry.stash.finish_get()
        self._mark(entry, "came", self._compute())
        if entry.eight_bits is not None:
            count = entry.use.size // entry.eight_bits.itemsize
            numbers = packing.unpack(stashes.view(storage), count, entry.eight_bits)
            storage = numbers.untyped_storage()
        entry.came = self._compute().record_event()
        return storage

    def _begin(self, entry: Entry) -> None:
        assert entry.stash is not None
        self._mark(entry, "begun", self._compute())
        entry.stash.begin_get()
        entry.step.stats.fetched_bytes += entry.use.carried
        if self._is_timed:
            self._mark(entry, "in", stashes.streams(self._index)[1])

    def _prefetch_after(self, entry: Entry) -> None:
        torch = import_torch()
        step = entry.step
        for key in self.schedule.after(entry.use.key, step.saved):
            following = step.entries.get(key)
            if following is None or following.was_asked or following.is_coming or following.alive() is not None:
                continue
            if step.ahead_bytes + following.use.carried > step.ahead_limit:
                return
            with contextlib.suppress(SpillwayError, torch.OutOfMemoryError):
                # Who asks for it gets the error.
                self._begin(following)
                step.prefetched.add(key)
                step.ahead_bytes += following.use.carried

    # ---- Between steps

    def end_step(self) -> None:
        step, self._step = self._step, Step()
        self.schedule.learn_order([use.key for use in step.asked])
        self._unread.append(step)
        self.read_clock()

    def finish(self) -> None:
        """Ends the step where its backward pass has begun, and learns from it. The device must be done."""
        if self._step.asked:
            self.end_step()
        self.read_clock()

    def read_clock(self) -> None:
        """Learns from the steps that the device has finished."""
        while self._unread and self._is_past(self._unread[0]):
            step = self._unread.popleft()
            self._read(step)
            self.schedule.learn(step.asked, self._room())
            self._count(step)

    def _room(self) -> int:
        """Bytes that nobody used when most were, and a tenth of them left alone."""
        torch = import_torch()
        most, now = torch.cuda.max_memory_allocated(self._index), torch.cuda.memory_allocated(self._index)
        return max(0, int(0.9 * (free_bytes(self._index) - (most - now))))

    def _count(self, step: Step) -> None:
        for use in step.asked:
            if "begun" not in step.marks[use.key]:
                continue
            if is_late(use) or use.key not in step.prefetched:
                step.stats.late += 1
            else:
                step.stats.hits += 1
                step.stats.early += is_early(use)
        self._finished(step.stats)

    # ---- The clock

    def _compute(self) -> Any:
        return import_torch().cuda.current_stream(self._index)

    def _mark(self, entry: Entry, name: str, stream: Any) -> None:
        if not entry.is_again:
            entry.step.marks.setdefault(entry.use.key, {})[name] = self._clock.mark(stream)

    def _is_past(self, step: Step) -> bool:
        return all(self._clock.is_past(mark) for marks in step.marks.values() for mark in marks.values())

    def _read(self, step: Step) -> None:
        """Times of the step's uses, from its first mark. A copy begins when its stream is done with the one before."""
        if not step.asked:
            return
        origin = next(iter(step.marks.values()))["saved"]
        times = {
            key: {name: self._clock.ns(origin, mark) for name, mark in marks.items()}
            for key, marks in step.marks.items()
        }
        for use in step.asked:
            at = times[use.key]
            use.saved_ns, use.needed_ns, use.came_ns = at["saved"], at["needed"], at.get("in")
            if "resumed" in at:
                use.wait_ns = at["resumed"] - at["paused"]
                step.stats.wait_ns += use.wait_ns
            if "came" in at:
                use.stall_ns = at["came"] - at["needed"]
        for begin, end, duration in (("saved", "out", "out_ns"), ("begun", "in", "in_ns")):
            done = float("-inf")
            for use in sorted((use for use in step.asked if end in times[use.key]), key=lambda u: times[u.key][end]):
                at = times[use.key]
                setattr(use, duration, at[end] - max(done, at[begin]))
                done = at[end]
