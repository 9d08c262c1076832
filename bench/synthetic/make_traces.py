#!/usr/bin/env python3
"""Writes synthetic memory traces in the form of torch.cuda.memory._dump_snapshot(): KIND.pickle.gz for each kind.

Nothing runs: each kind imitates the order and the sizes of a program's allocations, at real scale. Same kind, seed and
iterations, same trace, whatever the machine and the Python; the packed bytes are equal where zlib's version is.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import NoReturn

from draws import Draws
from recorder import Recorder
from workloads import KINDS, Kind

MOST_ITERATIONS = 10_000


class Parser(argparse.ArgumentParser):
    """Complains in one line and exits with 1, as the command spillway does."""

    def error(self, message: str) -> NoReturn:
        sys.exit(f"make_traces.py: {message}")


def integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"'{text}'; allowed: {low} to {high}")
        return int(text)

    return parse


def write(kind: Kind, seed: int, iterations: int, folder: pathlib.Path) -> None:
    recorder = Recorder()
    kind.record(recorder, Draws(seed), iterations)
    path = folder / f"{kind.name}.pickle.gz"
    recorder.write(path)
    print(f"{path}: {iterations} {kind.unit}, {len(recorder.events)} events", flush=True)


def main() -> None:
    parser = Parser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--kind", default="all", metavar="NAME", help="one of --list, or all (default)")
    parser.add_argument("--seed", type=integer(0, 2**63 - 1), default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--iterations",
        type=integer(1, MOST_ITERATIONS),
        metavar="N",
        help="how long the program runs; --list tells the default of each kind and what one iteration is",
    )
    parser.add_argument("--output", type=pathlib.Path, metavar="DIR", help="folder, made where there is none")
    parser.add_argument("--list", action="store_true", help="print the kinds and their default iterations")
    options = parser.parse_args()
    if options.list:
        for kind in KINDS.values():
            print(f"{kind.name:24} {kind.iterations:4} {kind.unit:21} {kind.summary}")
        return
    if options.kind != "all" and options.kind not in KINDS:
        parser.error(f"unknown kind '{options.kind}'; allowed: {', '.join(KINDS)}, all")
    if options.output is None:
        parser.error("--output DIR is missing")
    chosen = list(KINDS.values()) if options.kind == "all" else [KINDS[options.kind]]
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        for kind in chosen:
            write(kind, options.seed, options.iterations or kind.iterations, options.output)
    except OSError as error:
        parser.error(f"{error.filename or options.output}: {error.strerror}")


if __name__ == "__main__":
    main()
