#!/usr/bin/env python3
"""What an allocation with its free costs through PyTorch, on Spillway and on PyTorch's own allocator; prints JSON.

Both run in this program's children, which are alike but for the allocator, and take turns. To be run by the Python of
.venv.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulated import ROOT, collect, enter, serve, start

ALLOCATORS = ("native", "full")
SIZES = {"512 B": 512, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
DEVICE = "capacity:8GiB,races:off,backing:none"
RAW, EMPTY = "raw_alloc and raw_delete", "torch.empty and its end"
RAW_PAIRS, EMPTY_PAIRS, COUNTED_PAIRS = 20_000, 5_000, 10_000
COUNTED_SIZE = "64 KiB"
TURN_SECONDS = 120

Measures = dict[tuple[str, str], Callable[[], float]]  # processor time in ns per pair, by what is called and size


@functools.cache
def pairs() -> ctypes.CDLL:
    build: Any = importlib.import_module("spillway._pytorch.build")
    torch: Any = importlib.import_module("torch")
    folder = Path(__file__).resolve().parent / "pairs"
    loaded = ctypes.CDLL(str(build.compiled(torch, "spillway_pairs", folder, folder, [])))
    loaded.pairs_raw_ns.restype = ctypes.c_double
    loaded.pairs_raw_ns.argtypes = loaded.pairs_under_callgrind.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    return loaded


def empty_ns(size: int) -> float:
    torch: Any = importlib.import_module("torch")
    empty, device, kind = torch.empty, torch.device("cuda", 0), torch.uint8
    begin = time.thread_time_ns()
    for _ in range(EMPTY_PAIRS):
        empty(size, dtype=kind, device=device)
    return (time.thread_time_ns() - begin) / EMPTY_PAIRS


def measures() -> Measures:
    made: Measures = {}
    for name, size in SIZES.items():
        made[RAW, name] = functools.partial(pairs().pairs_raw_ns, size, RAW_PAIRS)
        made[EMPTY, name] = functools.partial(empty_ns, size)
    return made


def measure(repeats: int) -> list[dict[str, Any]]:
    """The allocators in turn, each measure once in a turn; medians over the turns."""
    turns = [multiprocessing.Semaphore(int(index == 0)) for index in range(len(ALLOCATORS))]

    def program(index: int) -> dict[tuple[str, str], float]:
        importlib.import_module("torch").zeros(1, device="cuda")
        own = measures()
        found: dict[tuple[str, str], list[float]] = {key: [] for key in own}
        for _ in range(repeats + 1):
            if not turns[index].acquire(timeout=TURN_SECONDS):
                raise TimeoutError("the other allocator's process is gone")
            for key, run in own.items():
                found[key].append(run())
            turns[(index + 1) % len(turns)].release()
        return {key: statistics.median(values[1:]) for key, values in found.items()}

    children = [
        start(functools.partial(program, index), allocator, {"SPILLWAY_SIM": DEVICE})
        for index, allocator in enumerate(ALLOCATORS)
    ]
    outcomes = collect(children)
    for allocator, outcome in zip(ALLOCATORS, outcomes, strict=True):
        if outcome.failure:
            sys.exit(f"speed.py: {allocator}: {outcome.failure.strip().splitlines()[-1]}")
    native, full = (outcome.value for outcome in outcomes)
    return [
        {"calls": calls, "size": size, "native_ns": native[calls, size], "full_ns": full[calls, size]}
        for calls, size in native
    ]


# ---- Instructions


def count_here() -> None:
    """What runs under callgrind: each allocator in a child, one after the other, so that PyTorch is imported once."""
    torch: Any = importlib.import_module("torch")
    for allocator in ALLOCATORS:
        child = os.fork()
        if child == 0:
            serve(torch, allocator)
            torch.zeros(1, device="cuda")
            pairs().pairs_under_callgrind(SIZES[COUNTED_SIZE], COUNTED_PAIRS)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"speed.py: {allocator} failed under valgrind")


def instructions(build: Path) -> list[float]:
    """Of one pair of raw_alloc and raw_delete, for each allocator."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        words = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", sys.executable]
        words += [str(Path(__file__).resolve()), f"--build={build}", "--count"]
        given = {**os.environ, "SPILLWAY_SIM": DEVICE}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=given)
    counted = [int(each) / COUNTED_PAIRS for each in re.findall(r"Collected : (\d+)", done.stderr)]
    if done.returncode != 0 or len(counted) <= len(ALLOCATORS):  # the last is of what started them
        sys.exit(f"speed.py: {' '.join(words)}: {(done.stderr.strip().splitlines() or ['it counted nothing'])[-1]}")
    return counted[: len(ALLOCATORS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    parser.add_argument("--repeats", type=int, default=61, metavar="N", help="turns of each allocator")
    parser.add_argument(
        "--instructions", action="store_true", help=f"count those of a pair of {COUNTED_SIZE} too, by valgrind"
    )
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: at least 1")
    enter(options.build.resolve())
    if options.count:
        count_here()
        return
    pairs()
    rows = measure(options.repeats)
    if options.instructions:
        counted = next(row for row in rows if (row["calls"], row["size"]) == (RAW, COUNTED_SIZE))
        for allocator, each in zip(ALLOCATORS, instructions(options.build.resolve()), strict=True):
            counted[f"{allocator}_instructions"] = each
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
