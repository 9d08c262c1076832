#!/usr/bin/env python3
"""Runs every benchmark and writes docs/benchmarks.md.

Progress goes to stderr. If a command fails, one line says which, and the page stays as it was.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from page.commands import CommandError, Commands
from page.markdown import page, table
from page.sections import SECTIONS

ROOT = Path(__file__).resolve().parent.parent
HEAD = page(
    "# Benchmarks",
    "    bench/print_benchmarks.py",
    "prints this page, from the release build and the traces beside the checkout.",
    "All figures here are **simulated**: real recorded traces, PyTorch's own allocator (`libc10_cuda.so` of the torch "
    "that scripts/quickstart installs) and Spillway, each on the simulated device. Times are host time on the machine "
    "that printed the page, which may have had other work: only their ratios in one run mean anything, and only those "
    "are shown.",
)

# These run for longer than this page should take, or on a machine that must be quiet; and where their figures are.
ELSEWHERE = page(
    "## Elsewhere",
    table(
        "what | command | figures",
        [
            (
                "activations beyond the device, beside PyTorch's own ways",
                "`bench/pytorch/activation_offload.py`",
                "[spilling-measurements.md](spilling-measurements.md)",
            ),
            (
                "the disk's engine beside fio",
                "`bench/offload/against_fio.py --dir DIRECTORY`",
                "[spilling-measurements.md](spilling-measurements.md)",
            ),
            (
                "what checksums cost on the way to the disk",
                "`build/release/bin/bench_disk_tier --dir DIRECTORY`",
                "[spilling-measurements.md](spilling-measurements.md)",
            ),
            ("tiers of this machine", "`spillway tiers`, `spillway bench-tiers`", "printed"),
            (
                "10^6 random operations of spilling, with faults",
                "`SPILLWAY_LIBCUDA=$PWD/build/release/lib/sim/libcuda.so.1 SPILLWAY_TEST_SEEDS=24 "
                "SPILLWAY_TEST_STEPS=42000 build/release/bin/offload_regions_test --gtest_filter='Random*'`; "
                "also with build/asan and build/tsan",
                "passes or names the seed",
            ),
            (
                "a fault at every call of the disk and of the driver, real limits",
                "`ctest --test-dir build/release -R 'DiskFaults\\|EveryFault\\|WhereverTheDriverFails\\|^Limits'`",
                "passes",
            ),
            (
                "a captured graph over a region that was evicted",
                "`ctest --test-dir build/release -R python.regions`",
                "passes",
            ),
            (
                "requests, races and counters of training in 500 seeds, beside PyTorch's own allocator (half an hour)",
                "`ctest --test-dir build/release -C long -R python.races_in_many_seeds`",
                "passes or names the seed",
            ),
            (
                "all tests with another release of PyTorch",
                "`scripts/test --torch 2.15.0`",
                "passes",
            ),
            (
                "every function of `torch.cuda.memory`, and users' complaints",
                "`.venv/bin/python tests/python/conformance/print_conformance.py`",
                "[pytorch-conformance.md](pytorch-conformance.md)",
            ),
            (
                "10^6 calls from 8 threads through LD_PRELOAD",
                "`ctest --test-dir build/release -C long -R preload.stress_long`; also with build/tsan",
                "passes",
            ),
            ("a pair through LD_PRELOAD", "`build/release/bin/bench_preload`", "[preload.md](preload.md)"),
            ("an event of the trace", "`build/release/bin/bench_trace`", "[trace.md](trace.md)"),
            (
                "estimates beside other tools",
                "`bench/estimator/side_by_side.py`",
                "[estimator-side-by-side.md](estimator-side-by-side.md)",
            ),
            ("dumps of 1024 ranks", "`bench/report/ranks.py build/release/bin/spillway`", "printed"),
        ],
    ),
)


class Parser(argparse.ArgumentParser):
    """Complains in one line and exits with 1, as the command spillway does."""

    def error(self, message: str) -> NoReturn:
        sys.exit(f"print_benchmarks.py: {message}")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: docs/benchmarks.md")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", metavar="DIR", help="build/release")
    parser.add_argument(
        "--shared", type=Path, default=ROOT.parent / "shared", metavar="DIR",
        help="recorded traces, in snapshots and traces below it; default: shared beside the checkout",
    )  # fmt: skip
    parser.add_argument("--traces", type=Path, metavar="DIR", help="keep the synthetic traces here")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, metavar="SECTION",
        help=f"print only these to stdout and write nothing: {', '.join(SECTIONS)}",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.only and options.output:
        parser.error("--only prints to stdout, --output writes the whole page: choose one")
    options.output = options.output or ROOT / "docs" / "benchmarks.md"
    # Known before anything runs for minutes.
    if not options.only and (options.output.is_dir() or not os.access(options.output.parent, os.W_OK)):
        parser.error(f"{options.output}: no file can be written there")
    return options


def run(names: list[str], commands: Commands) -> list[str]:
    sections = []
    for count, name in enumerate(names, 1):
        print(f"[{count}/{len(names)}] {name}", file=sys.stderr, flush=True)
        sections.append(SECTIONS[name](commands))
    return sections


def replace(file: Path, text: str) -> None:
    """The whole text, or the file as it was."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            commands = Commands(options.build.resolve(), options.shared.resolve(), options.traces or Path(scratch))
            if options.only:
                print("\n".join(run(options.only, commands)), end="")
            else:
                replace(options.output, "\n".join([HEAD, *run(list(SECTIONS), commands), ELSEWHERE]))
    except CommandError as failure:
        sys.exit(f"print_benchmarks.py: {failure}")
    except KeyError as key:
        sys.exit(f"print_benchmarks.py: no {key} in what the programs of {options.build} answer: build them anew")
    except OSError as error:
        sys.exit(f"print_benchmarks.py: {error.filename or options.output}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(f"print_benchmarks.py: interrupted; {options.output} is as it was")


if __name__ == "__main__":
    main(sys.argv[1:])
