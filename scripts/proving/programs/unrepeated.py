"""Programs of blocks that never repeat themselves, on one allocator; prints one JSON line.

usage: unrepeated.py native|expandable|spillway [options]

Sizes are drawn before; what is timed are the calls alone, wall and processor time in ns a call, by quarter of the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import time
from collections.abc import Iterator
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
SEED = 1
QUARTERS = 4
# A block to make, with its name, or one to free: (name, bytes), (name, 0).
Step = tuple[int, int]


def between(rng: random.Random, fewest: int, most: int) -> int:
    return int(math.exp(rng.uniform(math.log(fewest), math.log(most))))


def serving(rng: random.Random) -> Iterator[Step]:
    """96 requests live at once, each of six blocks that stay as long as it does and five that do not."""
    live: list[list[int]] = [[] for _ in range(96)]
    names = itertools.count()
    while True:
        request = rng.choice(live)
        yield from ((name, 0) for name in request)
        request.clear()
        for number in range(6):
            temporary = next(names) if number else None
            if temporary is not None:
                yield temporary, between(rng, 4 * KIB, 128 * MIB)
            request.append(next(names))
            yield request[-1], between(rng, 4 * KIB, 16 * MIB)
            if temporary is not None:
                yield temporary, 0


def replace(rng: random.Random) -> Iterator[Step]:
    """512 blocks, of which one at a time makes room for another."""
    live: list[int] = []
    for name in itertools.count():
        if len(live) == 512:
            place = rng.randrange(len(live))
            live[place], live[-1] = live[-1], live[place]
            yield live.pop(), 0
        live.append(name)
        yield name, between(rng, 512, 64 * MIB)


def varlen(rng: random.Random) -> Iterator[Step]:
    """Training of a transformer of 28 layers of 4096 in 16 bits, with another length in each step."""
    names = itertools.count()
    while True:
        tokens = between(rng, 128, 8192)
        hidden = tokens * 4096 * 2
        kept = []
        for _ in range(28):
            for number in range(10):
                temporary, name = next(names), next(names)
                yield temporary, hidden * 4 if number % 3 == 0 else hidden
                size = tokens * 4 if number < 2 else hidden if number < 8 else hidden * 11 // 4
                yield name, size
                kept.append((name, hidden if number < 8 else hidden * 11 // 4))
                yield temporary, 0
        gradient = next(names)
        yield gradient, hidden
        for name, size in reversed(kept):
            further = next(names)
            yield further, size
            yield name, 0
            yield gradient, 0
            gradient = further
        yield gradient, 0


PROGRAMS = {"serving": serving, "replace": replace, "varlen": varlen}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("allocator", choices=("native", "expandable", "spillway"))
    parser.add_argument("--calls", type=int, default=200_000, help="of each program")
    parser.add_argument("--program", action="append", choices=PROGRAMS)
    return parser.parse_args()


def run(torch: Any, program: Iterator[Step], calls: int) -> dict[str, Any]:
    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    addresses: dict[int, int] = {}
    wall, processor = [], []
    for _ in range(QUARTERS):
        steps = list(itertools.islice(program, calls // QUARTERS))
        begin, begin_of_thread = time.perf_counter_ns(), time.thread_time_ns()
        for name, size in steps:
            if size:
                addresses[name] = allocate(size, stream)
            else:
                free(addresses.pop(name))
        processor.append(round((time.thread_time_ns() - begin_of_thread) / len(steps)))
        wall.append(round((time.perf_counter_ns() - begin) / len(steps)))
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    for address in addresses.values():
        free(address)
    return {
        "wall_ns": wall,
        "processor_ns": processor,
        "peak_bytes": peak,
        "reserved_times_peak": round(reserved / peak, 4),
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
    }


def main() -> None:
    options = arguments()
    if options.allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    if options.allocator == "spillway":
        import spillway

        spillway.install()
    torch.zeros(1, device="cuda")
    found = {
        name: run(torch, PROGRAMS[name](random.Random(SEED)), options.calls) for name in options.program or PROGRAMS
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
