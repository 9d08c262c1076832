"""Puts an allocator under stress and prints one JSON line.

values: tensors on several streams, each full of a number of its own, made and freed in any order under a limit; every
word that is looked at again must still have it, and a graph replayed between must compute what it did.
give_back: much memory in blocks of 64 MiB and of 3 MiB, and how long empty_cache() takes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from typing import Any

import torch

MIB, GIB = 1 << 20, 1 << 30
STREAMS = 4
PART_WORDS = 1 << 20  # compared at once, so that comparing takes little memory


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("allocator", choices=("native", "spillway"))
    parser.add_argument("what", choices=("values", "give_back"))
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--limit", type=int, default=12 * GIB)
    parser.add_argument("--gib", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def stream() -> torch.cuda.Stream:
    made: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return made


class Tensors:
    def __init__(self, limit: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.most_bytes = int(limit * 0.92)
        self.streams = [stream() for _ in range(STREAMS)]
        self.live: list[tuple[torch.Tensor, int, torch.cuda.Stream]] = []
        self.held_bytes = self.made = self.checked_words = self.out_of_memory = 0
        self.wrong = torch.zeros(1, dtype=torch.int64, device="cuda")

    def make(self) -> None:
        words = int(min(64 * MIB, 512 * math.exp(self.rng.expovariate(0.2)))) // 4 + 1
        stream = self.rng.choice(self.streams)
        self.made += 1
        with torch.cuda.stream(stream):
            tensor = torch.full((words,), self.made, dtype=torch.int32, device="cuda")
        self.live.append((tensor, self.made, stream))
        self.held_bytes += tensor.nbytes

    def look(self, tensor: torch.Tensor, value: int, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            bad = torch.zeros(1, dtype=torch.int64, device="cuda")
            for begin in range(0, tensor.numel(), PART_WORDS):
                bad += torch.count_nonzero(tensor[begin : begin + PART_WORDS] != value)
            bad.record_stream(torch.cuda.default_stream())
        torch.cuda.default_stream().wait_stream(stream)
        self.wrong += bad
        self.checked_words += tensor.numel()

    def drop(self) -> None:
        place = self.rng.randrange(len(self.live))
        self.live[place], self.live[-1] = self.live[-1], self.live[place]
        tensor, value, stream = self.live.pop()
        self.held_bytes -= tensor.nbytes
        if self.rng.random() < 0.3:
            self.look(tensor, value, stream)
        if self.rng.random() < 0.2:
            tensor.record_stream(self.rng.choice(self.streams))

    def turn(self) -> None:
        for _ in range(200):
            try:
                if self.live and (self.rng.random() < 0.47 or self.held_bytes > self.most_bytes):
                    self.drop()
                else:
                    self.make()
            except torch.OutOfMemoryError:
                self.out_of_memory += 1
                for _ in range(min(20, len(self.live))):
                    self.held_bytes -= self.live.pop()[0].nbytes


def captured() -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
    """Of three times its input."""
    into = torch.ones(1 << 18, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        twice = (into.clone() * 2).clone()
        out = (twice + into).clone()
    return graph, into, out


def values(options: argparse.Namespace) -> dict[str, Any]:
    torch.cuda.set_per_process_memory_fraction(options.limit / torch.cuda.mem_get_info()[1])
    tensors = Tensors(options.limit, options.seed)
    graph, into, out = captured()
    wrong_in_graphs = torch.zeros(1, dtype=torch.int64, device="cuda")
    end, turns = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        turns += 1
        tensors.turn()
        torch.cuda.synchronize()
        into.fill_(turns)
        graph.replay()
        wrong_in_graphs += (out != 3 * turns).any()
        if turns % 20 == 0:
            torch.cuda.empty_cache()
    for each in tensors.live[:: max(1, len(tensors.live) // 200)]:
        tensors.look(*each)
    torch.cuda.synchronize()
    return {
        "turns": turns,
        "made": tensors.made,
        "checked_words": tensors.checked_words,
        "out_of_memory": tensors.out_of_memory,
        "wrong_words": int(tensors.wrong) + int(wrong_in_graphs),
    }


def timed(blocks: list[torch.Tensor], size: int, total: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    blocks.extend(torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(total // size))
    torch.cuda.synchronize()
    return round(time.perf_counter() - begin, 4)


def give_back(options: argparse.Namespace) -> dict[str, Any]:
    total = min(options.gib * GIB, torch.cuda.mem_get_info()[0] // 10 * 8)
    found: dict[str, Any] = {"bytes": total, "first_s": 0.0, "again_s": 0.0, "empty_cache_s": 0.0}
    for size in (64 * MIB, 3 * MIB):
        blocks: list[torch.Tensor] = []
        found["first_s"] += timed(blocks, size, total)
        blocks.clear()
        found["again_s"] += timed(blocks, size, total)
        blocks.clear()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.cuda.empty_cache()
        found["empty_cache_s"] = max(found["empty_cache_s"], round(time.perf_counter() - begin, 4))
    return found


def main() -> None:
    options = arguments()
    if options.allocator == "spillway":
        import spillway

        spillway.install()
    if "SPILLWAY_SIM" in os.environ:
        torch.backends.cudnn.enabled = False  # it is not simulated
    found = values(options) if options.what == "values" else give_back(options)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
