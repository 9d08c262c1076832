"""Random numbers that are the same on every machine and every Python.

Of module random, Python promises to keep only the sequence of random() for a seed, so everything here is made from
that. No logarithm and no power: C libraries round those differently, and one bit more would change a size.
"""

from __future__ import annotations

import random


class Draws:
    def __init__(self, seed: int) -> None:
        self.uniform = random.Random(seed).random

    def below(self, count: int) -> int:
        return int(self.uniform() * count)

    def between(self, low: int, high: int) -> int:
        """Both ends included."""
        return low + self.below(high - low + 1)

    def happens(self, probability: float) -> bool:
        return self.uniform() < probability

    def exponential(self) -> float:
        """Mean 1, by von Neumann's method of comparisons (Forsythe 1972, Mathematics of Computation 26, section 1).

        A falling run of uniform numbers has odd length with the probability that its first one is the fraction wanted.
        """
        whole = 0
        while True:
            first = last = self.uniform()
            length = 1
            while (drawn := self.uniform()) < last:
                last = drawn
                length += 1
            if length % 2 == 1:
                return whole + first
            whole += 1

    def shares(self, count: int) -> list[float]:
        """Parts of 1, every division equally likely."""
        parts = [self.exponential() for _ in range(count)]
        total = sum(parts)
        return [part / total for part in parts]
