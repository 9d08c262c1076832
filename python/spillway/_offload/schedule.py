"""When to bring saved tensors back: learned from the step before.

Autograd asks for saved tensors in nearly the same order in each step. A step is noted as the order of the keys asked
for and, where the device's clock was read, when each was asked for and how long its copies took. From that follow

- the order of the next step; before the first is known, the reverse of the order in which they were saved;
- how many ahead of the one asked for are on their way: as many as the times say, and `depth` at least. That is twice
  as many after a step in which one came late though the link could have brought it; one fewer after a step in which
  most came early, by more than twice their copy's time; but never again as few as were once too few;
- what had better stay on the device: the first `depth` asked for, which would come back at once, those that the program
  holds anyway, and those whose copies the link cannot hide;
- how much of what is saved may be on the device at a time: where there is more, work waits for copies out, so that more
  is gone when the first is asked for. As little as costs `most_wait` of the step's time: holding.py.

Knows nothing of devices or PyTorch.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from .holding import NO_BOUND, Save, plan

FIRST_DEPTH = 4
MOST_DEPTH = 64
# Copies are planned with this much of the time that they are measured to take.
MARGIN = 1.1
# A stall of the compute stream below this is no lateness: two events in a row are so far apart.
LATE_NS = 20_000


@dataclass
class Use:
    """One tensor in one step. Times are ns of one clock of the device, None where unknown."""

    key: Hashable
    size: int  # bytes
    packed: int | None = None  # bytes that the link carries, where those are fewer
    is_held: bool = False  # the program held it all the time, so that putting it away saved nothing
    saved_ns: float | None = None
    needed_ns: float | None = None
    came_ns: float | None = None  # 0 and more below needed_ns: early
    stall_ns: float | None = None  # how long the compute stream waited
    is_refused: bool = False  # there was no room for it elsewhere
    wait_ns: float = 0.0  # how long it waited for copies out when this was saved
    out_ns: float | None = None  # how long the copy took
    in_ns: float | None = None

    @property
    def carried(self) -> int:
        return self.size if self.packed is None else self.packed


@dataclass
class Schedule:
    most_wait: float = 0.0
    depth: int = FIRST_DEPTH
    most_held: float = NO_BOUND  # bytes of what is saved, beyond which work waits for copies out
    order: list[Hashable] = field(default_factory=list)
    stays: frozenset[Hashable] = frozenset()
    _positions: dict[Hashable, int] = field(default_factory=dict)
    _leads: dict[Hashable, int] = field(default_factory=dict)  # how many ahead it must begin, where times say more
    _reach: list[int] = field(default_factory=list)  # at each position, the furthest that is on its way
    _least_depth: int = 1
    _held: set[Hashable] = field(default_factory=set)
    _sizes: dict[Hashable, int] = field(default_factory=dict)
    _refused: set[Hashable] = field(default_factory=set)
    _saved: dict[Hashable, float] = field(default_factory=dict)  # when, had nothing waited
    _needed: dict[Hashable, float] = field(default_factory=dict)
    _waited: dict[Hashable, float] = field(default_factory=dict)  # how long until it is saved, as planned
    _waited_in_all: float = 0.0
    _bandwidth: dict[str, float] = field(default_factory=dict)  # bytes per ns

    def after(self, key: Hashable, saved: Sequence[Hashable]) -> list[Hashable]:
        """What should be on its way when `key` is asked for, nearest first. `saved`: all of the step, as saved."""
        position = self._positions.get(key)
        if position is not None:
            return self.order[position + 1 : self._reach[position] + 1]
        if self.order or key not in saved:
            return []
        place = saved.index(key)
        return list(saved[max(0, place - self.depth) : place])[::-1]

    def learn_order(self, keys: Sequence[Hashable]) -> None:
        """What the last step asked for, in this order."""
        if keys:
            self.order = list(keys)
            self._positions = {key: position for position, key in enumerate(self.order)}
            self._plan_reach()

    def learn(self, uses: Sequence[Use], room: int) -> None:
        """The times of one whole step, in the order asked for. `room`: bytes that may stay beyond those that did."""
        if not uses:
            return
        self._measure(uses)
        self._note_times(uses)
        # Where the link is what lacks, more that is on its way helps nothing.
        if all(use.key in self.stays for use in self._unhidden(uses)):
            self._adapt_depth(uses)
        self._held |= {use.key for use in uses if use.is_held}
        self._choose(uses, room)
        self._plan_holding(uses)
        if self._waited_in_all > 0:
            # More can go then.
            self._choose(uses, room)
            self._plan_holding(uses)
        self._plan_reach()

    def is_as_planned(self, key: Hashable, size: int, is_refused: bool = False) -> bool:
        return self._sizes.get(key) == size and (not is_refused or key in self._refused)

    def _choose(self, uses: Sequence[Use], room: int) -> None:
        stays = {use.key for use in uses[: self.depth]} | self._held
        room += sum(use.size for use in uses if use.key in self.stays and use.key not in stays)
        for use in self._unhidden(uses):
            room -= use.size
            if room < 0:
                break
            stays.add(use.key)
        self.stays = frozenset(stays)

    def _plan_reach(self) -> None:
        """Copies run one after the other, so none begins before one that is needed sooner."""
        count = len(self.order)
        self._reach = [min(position + self.depth, count - 1) for position in range(count)]
        for position, key in enumerate(self.order):
            begin = max(0, position - self._leads.get(key, 0))
            self._reach[begin] = max(self._reach[begin], position)
        self._reach = list(itertools.accumulate(self._reach, max))

    def _adapt_depth(self, uses: Sequence[Use]) -> None:
        # Of the first, none was asked for so far ahead.
        came = [use for use in uses[self.depth :] if use.stall_ns is not None]
        if not came:
            return
        if any(is_late(use) for use in came):
            self._least_depth = min(self.depth + 1, MOST_DEPTH)
            self.depth = min(2 * self.depth, MOST_DEPTH)
        elif 2 * sum(is_early(use) for use in came) > len(came):
            self.depth = max(self.depth - 1, self._least_depth)

    def _measure(self, uses: Sequence[Use]) -> None:
        for way in ("out", "in"):
            timed = [(use.carried, time) for use in uses if (time := getattr(use, f"{way}_ns")) is not None]
            total = sum(time for _, time in timed)
            if total > 0:
                self._bandwidth[way] = sum(size for size, _ in timed) / total

    def _note_times(self, uses: Sequence[Use]) -> None:
        """Without what is to be avoided, or is planned anew: the stalls of the step, and its waits."""
        self._saved, self._needed = {}, {}
        self._sizes = {use.key: use.size for use in uses}
        self._refused = {use.key for use in uses if use.is_refused}
        saves, needs = [], []
        for use in uses:
            if use.saved_ns is None or use.needed_ns is None:
                return
            saves.append((use.saved_ns, use))
            needs.append((use.needed_ns, use))
        waited = stalled = 0.0
        for time, use in sorted(saves, key=lambda save: save[0]):
            self._saved[use.key] = time - waited
            waited += use.wait_ns
        for time, use in needs:
            self._needed[use.key] = time - waited - stalled
            stalled += use.stall_ns or 0.0

    def _plan_holding(self, uses: Sequence[Use]) -> None:
        self.most_held = NO_BOUND
        self._waited, self._waited_in_all = {}, 0.0
        if not self._saved or "out" not in self._bandwidth:
            return
        order = sorted(uses, key=lambda use: self._saved[use.key])
        bandwidth = self._bandwidth["out"]
        copies = [0.0 if use.key in self.stays or use.is_refused else use.carried / bandwidth for use in order]
        saves = [Save(self._saved[use.key], use.size, copy) for use, copy in zip(order, copies, strict=True)]
        step_ns = max(self._needed.values()) - saves[0].time
        self.most_held, waited = plan(saves, self.most_wait * step_ns)
        self._waited = {use.key: time for use, time in zip(order, waited, strict=False)}
        self._waited_in_all = waited[-1]

    def _unhidden(self, all_uses: Sequence[Use]) -> list[Use]:
        """Those that the link cannot bring out and back in time, the soonest asked for first; plans the others.

        Copies back run one after the other, so the latest start of each is the earlier of when it is needed and the
        latest start of the next, less its time. Where that is before the first is asked for, or before its copy out
        is done, nothing hides it.
        """
        if not self._saved or len(self._bandwidth) < 2:
            return []
        uses = [use for use in all_uses[self.depth :] if use.key not in self._held]  # others stay anyway
        gone = self._gone(uses)
        needed = {key: time + self._waited_in_all for key, time in self._needed.items()}
        # On several streams they are not in the order asked for.
        times = list(itertools.accumulate(needed.values(), max))
        positions = {use.key: position for position, use in enumerate(all_uses)}
        latest = float("inf")
        found = []
        self._leads = {}
        for use in reversed(uses):
            start = min(latest, needed[use.key]) - MARGIN * use.carried / self._bandwidth["in"]
            if start < max(times[0], gone[use.key]):
                found.append(use)
            else:
                latest = start
                self._leads[use.key] = max(0, positions[use.key] - (bisect.bisect_right(times, start) - 1))
        return found[::-1]

    def _gone(self, uses: Sequence[Use]) -> dict[Hashable, float]:
        """When each copy out is done: one after the other, as they were saved."""
        done = float("-inf")
        gone = {}
        for use in sorted(uses, key=lambda use: self._saved[use.key]):
            saved = self._saved[use.key] + self._waited.get(use.key, 0.0)
            done = max(done, saved) + MARGIN * use.carried / self._bandwidth["out"]
            gone[use.key] = done
        return gone


def is_late(use: Use) -> bool:
    return use.stall_ns is not None and use.stall_ns > LATE_NS


def is_early(use: Use) -> bool:
    if use.came_ns is None or use.needed_ns is None or use.in_ns is None:
        return False
    return use.needed_ns - use.came_ns > 2 * use.in_ns
