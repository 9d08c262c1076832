#!/usr/bin/env python3
"""The smallest simulated device on which each example of examples/pytorch trains, by allocator; prints JSON.

Found by bisection, as if every larger device would do as well. To be run by the Python of .venv.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from simulated import MIB, ROOT, enter

ALLOCATORS = ("native", "expandable", "full")
PAGE_BYTES = 2 * MIB
AMPLE_BYTES = 64 << 30
ARGUMENTS = "--steps 3"


class Search:
    def __init__(self, command: str, arguments: str = ARGUMENTS) -> None:
        self.arguments = arguments
        examples = importlib.import_module("examples")
        self.example = next(example for example in examples.EXAMPLES if example.command == command)
        # PyTorch's own counter of what programs ask for goes down as soon as a free completes.
        self.requested_bytes = self.peak("native", "requested_bytes")

    def peak(self, allocator: str, counter: str) -> int:
        outcomes = self.example.run(allocator, AMPLE_BYTES, self.arguments)
        for outcome in outcomes:
            if outcome.failure:
                sys.exit(f"smallest_devices.py: {self.example.command}, {allocator}: {last_line(outcome.failure)}")
        return max(int(outcome.stats[f"{counter}.all.peak"]) for outcome in outcomes)

    def completes(self, allocator: str, device_bytes: int) -> bool:
        outcomes = self.example.run(allocator, device_bytes, self.arguments)
        if any(outcome.out_of_memory for outcome in outcomes):
            return False
        if failures := [outcome.failure for outcome in outcomes if outcome.failure]:
            sys.exit(f"smallest_devices.py: {self.example.command}, {allocator}: {last_line(failures[0])}")
        return True

    def smallest(self, allocator: str) -> int:
        """In bytes, whole pages."""
        too_small = self.requested_bytes // PAGE_BYTES
        enough = -(-self.peak(allocator, "reserved_bytes") // PAGE_BYTES)
        while not self.completes(allocator, enough * PAGE_BYTES):
            too_small, enough = enough, enough + enough // 16 + 1
        while enough - too_small > 1:
            middle = (enough + too_small) // 2
            if self.completes(allocator, middle * PAGE_BYTES):
                enough = middle
            else:
                too_small = middle
        return enough * PAGE_BYTES


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    parser.add_argument("--example", action="append", metavar="COMMAND", help="such as generate.py; may be repeated")
    options = parser.parse_args()
    enter(options.build.resolve())
    # They import PyTorch, which the simulated device must precede; once for all children.
    for name in ("torch._dynamo", "torch.distributed.fsdp", "transformers"):
        importlib.import_module(name)
    commands = [example.command for example in importlib.import_module("examples").EXAMPLES]
    for unknown in set(options.example or []) - set(commands):
        parser.error(f"no example '{unknown}'; allowed: {', '.join(commands)}")
    rows = []
    for command in options.example or commands:
        search = Search(command)
        row: dict[str, object] = {"example": command, "requested_bytes": search.requested_bytes}
        for allocator in ALLOCATORS:
            print(f"  {command}, {allocator}", file=sys.stderr, flush=True)
            row[allocator] = search.smallest(allocator)
        rows.append(row)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
