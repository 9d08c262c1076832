"""Blocks whose mean size drifts from 1 MiB to 160 MiB and back, again and again, about 12 GiB live all the time.

Sizes are exponentially distributed around the mean. Every allocation first frees blocks picked at random until the
new one fits, so lifetimes are random and a small block may outlive the time of large ones.
"""

from __future__ import annotations

from draws import Draws
from recorder import GIB, KIB, MIB, Recorder

LIVE = 12 * GIB
SMALLEST_MEAN = 1 * MIB
DOUBLINGS = 7.25  # seven make 128 MiB, a quarter of the next 160
LARGEST = 1 * GIB
ALLOCATIONS_PER_ITERATION = 1000
ALLOCATIONS_PER_SWEEP = 40_000


def mean_at(progress: float) -> float:
    """From 0, the smallest mean, to 1, the largest: the same time for each doubling, and even steps within it."""
    doublings = int(progress * DOUBLINGS)
    return float(SMALLEST_MEAN << doublings) * (1 + progress * DOUBLINGS - doublings)


def record(recorder: Recorder, draws: Draws, thousands: int) -> None:
    recorder.recording = True
    live: list[int] = []
    total = 0
    for i in range(thousands * ALLOCATIONS_PER_ITERATION):
        progress = 1 - abs(2 * (i % ALLOCATIONS_PER_SWEEP) / ALLOCATIONS_PER_SWEEP - 1)
        size = min(LARGEST, KIB + int(mean_at(progress) * draws.exponential()))
        while live and total + size > LIVE:
            picked = draws.below(len(live))
            live[picked], live[-1] = live[-1], live[picked]
            block = live.pop()
            total -= recorder.size(block)
            recorder.free(block)
        live.append(recorder.allocate(size))
        total += size
