#!/usr/bin/env python3
"""How the disk's engine compares with fio on the same file system; prints a table, or JSON.

Both write and read as much, in turns, past the page cache; figures are medians. fio runs with io_uring (registered
buffers and files) and with libaio at several block sizes and depths, and its best of them counts; with huge pages too,
as ours, where the machine holds enough of them free (`sysctl vm.nr_hugepages=64`). Ours runs with io_uring and with
its fallback, threads. Needs fio and a built `spillway` command.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIO_SETTINGS = [("io_uring", "1M", 32), ("io_uring", "4M", 8), ("libaio", "1M", 32)]
HUGE_BYTES = 64 << 20  # more than fio's buffers need
OUR_SETTINGS = {
    "io_uring 1M x 32": "spill_block:1MiB,spill_depth:32",
    "io_uring 4M x 8": "spill_block:4MiB,spill_depth:8",
    "threads 1M x 32": "spill_engine:threads,spill_block:1MiB,spill_depth:32",
    "threads 4M x 8": "spill_engine:threads,spill_block:4MiB,spill_depth:8",
}
WAYS = ("write", "read")
Sample = dict[str, tuple[float, float]]  # of each way: bytes per second, and seconds of the processor for each GiB


def fail(text: str) -> None:
    sys.exit(f"against_fio: {text}")


def run_json(command: list[str], environment: dict[str, str] | None = None) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        fail(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return json.loads(done.stdout[done.stdout.index("{") :])


def has_huge_pages() -> bool:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["HugePages_Free"]) * int(lines["Hugepagesize"].split()[0]) << 10 >= HUGE_BYTES


def fio(folder: str, engine: str, block: str, depth: int, memory: str, size: int) -> Sample:
    sample: Sample = {}
    with tempfile.TemporaryDirectory(dir=folder) as files:
        for way in WAYS:
            command = [
                "fio", "--name=spill", f"--directory={files}", "--direct=1", f"--bs={block}", f"--iodepth={depth}",
                f"--ioengine={engine}", f"--mem={memory}", f"--size={size}", f"--rw={way}", "--output-format=json",
            ]  # fmt: skip
            if engine == "io_uring":
                command += ["--fixedbufs=1", "--registerfiles=1"]
            job = run_json(command)["jobs"][0]
            seconds = job[way]["runtime"] / 1000
            cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds
            sample[way] = (job[way]["bw_bytes"], cpu / (size / 2**30))
    return sample


def ours(command: Path, folder: str, size: int, settings: str) -> Sample:
    environment = {**os.environ, "SPILLWAY_CONF": settings}
    disk = run_json([str(command), "tiers", "--json", "--dir", folder, "--bytes", str(size)], environment)["disk"]
    if not disk["direct"]:
        fail(f"{folder} is not used past the page cache: {disk['warning']}")
    return {way: (disk[f"{way}_bytes_per_s"], disk[f"{way}_cpu_s_per_gib"]) for way in WAYS}


def contenders(folder: str, size: int, command: Path) -> dict[str, Callable[[], Sample]]:
    found: dict[str, Callable[[], Sample]] = {}
    for suffix, memory in {"": "malloc", ", huge pages": "shmhuge"}.items():
        if memory == "shmhuge" and not has_huge_pages():
            continue
        for engine, block, depth in FIO_SETTINGS:
            name = f"fio {engine} {block} x {depth}{suffix}"
            found[name] = partial(fio, folder, engine, block, depth, memory, size)
    for name, settings in OUR_SETTINGS.items():
        found[f"spillway {name}"] = partial(ours, command, folder, size, settings)
    return found


def measure(folder: str, size: int, rounds: int, command: Path) -> dict[str, Any]:
    samples: dict[str, dict[str, list[tuple[float, float]]]] = {}
    runs = list(contenders(folder, size, command).items())
    for turn in range(rounds):
        print(f"\rround {turn + 1} of {rounds}", end="", file=sys.stderr, flush=True)
        # A disk may be at work on the files that the one before has removed: each follows each other's place.
        for name, run in runs[turn % len(runs) :] + runs[: turn % len(runs)]:
            for way, sample in run().items():
                samples.setdefault(name, {}).setdefault(way, []).append(sample)
    print(file=sys.stderr)
    table: dict[str, Any] = {}
    for way in WAYS:
        medians = {
            name: tuple(statistics.median(values) for values in zip(*ways[way], strict=True))
            for name, ways in samples.items()
        }
        best = max(speed for name, (speed, _) in medians.items() if name.startswith("fio"))
        table[way] = {
            name: {"bytes_per_s": speed, "of_best_fio": speed / best, "cpu_s_per_gib": cpu}
            for name, (speed, cpu) in medians.items()
        }
    return {"folder": folder, "bytes": size, "rounds": rounds, "table": table}


def print_table(result: dict[str, Any]) -> None:
    print("| | write GB/s | of fio's best | processor s/GiB | read GB/s | of fio's best | processor s/GiB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in result["table"]["write"]:
        cells = [
            cell
            for way in WAYS
            for row in [result["table"][way][name]]
            for cell in (
                f"{row['bytes_per_s'] / 1e9:.2f}",
                f"{row['of_best_fio']:.2f}",
                f"{row['cpu_s_per_gib']:.3f}",
            )
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="folder on the disk to measure")
    parser.add_argument("--mib", type=int, default=2048, help="MiB to write and read each time")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    command = ROOT / "build/release/bin/spillway"
    if not command.exists():
        fail(f"{command} is not there: build it first (scripts/quickstart)")
    if shutil.which("fio") is None:
        fail("fio is not installed")
    result = measure(arguments.dir, arguments.mib << 20, arguments.rounds, command)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print_table(result)


if __name__ == "__main__":
    main()
