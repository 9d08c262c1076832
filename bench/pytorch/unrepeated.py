#!/usr/bin/env python3
"""What a call costs programs that never repeat themselves, from Python, by quarter of the run; prints JSON.

raw_alloc and raw_delete on Spillway, on PyTorch's own allocator and on its expandable segments: processes that are
alike but for the allocator, each on a simulated device of its own of 80 GiB, take turns. To be run by the Python of
.venv.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import multiprocessing
import random
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from simulated import ROOT, collect, enter, start

# Those that a GPU is proven with.
PROGRAMS: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/proving/programs/unrepeated.py"))["PROGRAMS"]

ALLOCATORS = ("native", "expandable", "full")
DEVICE = "capacity:80GiB,races:off,backing:none,completion:instant"
QUARTERS, TURNS = 4, 8  # turns in a quarter
TURN_SECONDS = 120


def run(index: int, turns: list[Any], name: str, seed: int, calls: int) -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    torch.zeros(1, device="cuda")
    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    program = PROGRAMS[name](random.Random(seed))
    addresses: dict[int, int] = {}
    spent_ns = [0] * QUARTERS
    in_turn = calls // QUARTERS // TURNS
    for turn in range(QUARTERS * TURNS):
        steps = list(itertools.islice(program, in_turn))
        if not turns[index].acquire(timeout=TURN_SECONDS):
            raise TimeoutError("another allocator's process is gone")
        begin = time.thread_time_ns()
        for block, size in steps:
            if size:
                addresses[block] = allocate(size, stream)
            else:
                free(addresses.pop(block))
        spent_ns[turn // TURNS] += time.thread_time_ns() - begin
        turns[(index + 1) % len(turns)].release()
    reserved = torch.cuda.max_memory_reserved() / torch.cuda.max_memory_allocated()
    for address in addresses.values():
        free(address)
    return {"call_ns": [ns / (in_turn * TURNS) for ns in spent_ns], "reserved_times_peak": round(reserved, 4)}


def measure(name: str, seed: int, calls: int) -> list[dict[str, Any]]:
    turns = [multiprocessing.Semaphore(int(index == 0)) for index in range(len(ALLOCATORS))]
    children = [
        start(functools.partial(run, index, turns, name, seed, calls), allocator, {"SPILLWAY_SIM": DEVICE})
        for index, allocator in enumerate(ALLOCATORS)
    ]
    rows = []
    for allocator, outcome in zip(ALLOCATORS, collect(children), strict=True):
        if outcome.failure:
            sys.exit(f"unrepeated.py: {name}, {allocator}: {outcome.failure.strip().splitlines()[-1]}")
        rows.append({"program": name, "allocator": allocator, **outcome.value})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    parser.add_argument("--calls", type=int, default=400_000, metavar="N", help="allocations and frees of each program")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of what is drawn")
    parser.add_argument("--program", action="append", choices=PROGRAMS, help="one of them; without any, all")
    options = parser.parse_args()
    if options.calls < QUARTERS * TURNS:
        parser.error(f"--calls {options.calls}: at least {QUARTERS * TURNS}")
    enter(options.build.resolve())
    rows = [row for name in options.program or PROGRAMS for row in measure(name, options.seed, options.calls)]
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
