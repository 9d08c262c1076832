"""Many small blocks, 512 B to 1 MiB, of mixed lifetimes.

Each octave of sizes is equally likely; half of the blocks have one of a few sizes that come again and again, as
tensors of one shape do. Half live for a few allocations, the others for thousands or tens of thousands.
"""

from __future__ import annotations

import heapq

from draws import Draws
from recorder import Recorder

ALLOCATIONS_PER_ITERATION = 1000
SMALLEST, OCTAVES = 512, 11
COMMON_SIZES = 40
# Probability and mean lifetime in allocations.
LIFETIMES = ((0.5, 12), (0.2, 2_000), (0.3, 60_000))


def draw_size(draws: Draws) -> int:
    """Whole elements of 4 bytes."""
    low = SMALLEST << draws.below(OCTAVES)
    return draws.between(low // 4, low // 2) * 4


def draw_lifetime(draws: Draws) -> int:
    which = draws.uniform()
    for probability, mean in LIFETIMES:
        if which < probability:
            return 1 + int(mean * draws.exponential())
        which -= probability
    return 1 + int(LIFETIMES[-1][1] * draws.exponential())


def record(recorder: Recorder, draws: Draws, thousands: int) -> None:
    recorder.recording = True
    common = [draw_size(draws) for _ in range(COMMON_SIZES)]
    ends: list[tuple[int, int]] = []
    for now in range(thousands * ALLOCATIONS_PER_ITERATION):
        while ends and ends[0][0] <= now:
            recorder.free(heapq.heappop(ends)[1])
        size = common[draws.below(COMMON_SIZES)] if draws.happens(0.5) else draw_size(draws)
        heapq.heappush(ends, (now + draw_lifetime(draws), recorder.allocate(size)))
