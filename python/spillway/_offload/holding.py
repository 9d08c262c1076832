"""How much of what a forward pass saves may be on the device at a time, where copies out cannot keep up.

What is saved is held until its copy out is done, or for good where it stays. The most is held when the forward pass
ends; it is less where work waited for copies before. Waits are as good late as early, as long as there is something to
copy: so work waits only where more than a bound is held, for the oldest copies. The bound is the least that costs no
more waiting than is allowed. From times of a step without such waits, in ns. Knows nothing of devices or PyTorch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

NO_BOUND = float("inf")
# Waits before a gap, in which there is nothing to copy, are lost: then less is tried, half each time.
TRIALS = 6


@dataclass
class Save:
    time: float
    size: int  # bytes
    copy_ns: float  # 0: it stays


class Holding(Generic[T]):
    """What is held of one step, oldest first. `copy`: whatever stands for a copy out, None for what stays."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._held = 0
        self._copies: deque[tuple[int, T]] = deque()

    def add(self, size: int, copy: T | None) -> T | None:
        """The copy that is to be waited for, and with it all before; None: nothing."""
        self._held += size
        if copy is not None:
            self._copies.append((size, copy))
        last = None
        while self._held > self._bound and self._copies:
            gone, last = self._copies.popleft()
            self._held -= gone
        return last


def plan(saves: Sequence[Save], budget: float) -> tuple[float, list[float]]:
    """The bound, and how long was waited until each is saved, and in all. `saves`: in the order of their times."""
    none = [0.0] * (len(saves) + 1)
    natural = least_bound(saves, 0.0)
    for trial in range(TRIALS):
        bound = least_bound(saves, budget / 2**trial)
        if bound >= natural:
            break
        waited = waits(saves, bound)
        if waited[-1] <= 1.01 * budget:
            return bound, waited
    return NO_BOUND, none


def least_bound(saves: Sequence[Save], late: float) -> float:
    """The most that is held at a time, were each thing saved so much later than the copies expect."""
    gone: deque[tuple[float, int]] = deque()
    most = held = 0
    done = float("-inf")
    for save in saves:
        held += save.size
        if save.copy_ns > 0:
            done = max(done, save.time) + save.copy_ns
            gone.append((done, save.size))
        while gone and gone[0][0] <= save.time + late:
            held -= gone.popleft()[1]
        most = max(most, held)
    return most


def waits(saves: Sequence[Save], bound: float) -> list[float]:
    holding: Holding[float] = Holding(bound)
    waited = [0.0]
    done = float("-inf")
    for save in saves:
        now = save.time + waited[-1]
        if save.copy_ns > 0:
            done = max(done, now) + save.copy_ns
        last = holding.add(save.size, done if save.copy_ns > 0 else None)
        waited.append(waited[-1] + (0.0 if last is None else max(0.0, last - now)))
    return waited
