"""Holds the capacity that Spillway needs on recorded traces below its bars, and beside PyTorch's expandable segments;
and that it falls silent when they are repeated near the limit.

usage: capacity_bars.py SPILLWAY TRACE...      (simulated device; needs PyTorch's allocator as the peer)
"""

import json
import pathlib
import subprocess
import sys
from typing import Any

GIB = 1 << 30
# Traces with a peak over 10 GiB may need at most this much without a host wait; smaller ones have coarser pages.
MOST_STALL_FREE = 1.005
MOST_STALL_FREE_SMALL = 1.010
MOST_MINIMUM = 1.004
MOST_MINIMUM_SMALL = 1.009
# Several streams share these; the peer strands memory on each.
SEVERAL_STREAMS = {"gather_free_prefetch"}


# Of ten passes on a device of this share of peak live, the last three call the driver for nothing and wait for nothing.
LOOP_CAPACITY = "102%"
SILENT_PASSES = (8, 9, 10)


def replay(spillway: str, options: list[str], traces: list[str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [spillway, "replay", "--json", *options, *traces], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{options}: exit {done.returncode}: {done.stderr.strip()}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def check(name: str, key: str, value: float, most: float) -> bool:
    kept = value <= most + 1e-9
    print(f"{name}: {key} {value:g}, at most {most:g}: {'kept' if kept else 'BROKEN'}")
    return kept


def loop_failures(spillway: str, traces: list[str]) -> int:
    failures = 0
    for passes in SILENT_PASSES:
        options = ["--capacity", LOOP_CAPACITY, "--completion", "run-ahead", "--repeat", str(passes)]
        for row in replay(spillway, options, traces):
            for key in ("steady_driver_calls_per_repeat", "steady_host_waits_per_repeat"):
                failures += not check(row["trace"], f"pass {passes}: {key}", row[key], 0)
    return failures


def main() -> int:
    spillway, traces = sys.argv[1], sys.argv[2:]
    failures = loop_failures(spillway, traces)
    ours = replay(spillway, ["--capacity", "min"], traces)
    peers = replay(spillway, ["--capacity", "min", "--allocator", "expandable"], traces)
    for own, peer in zip(ours, peers, strict=True):
        small = own["peak_live_bytes"] <= 10 * GIB
        limits = {
            "stall_free_capacity_ratio": MOST_STALL_FREE_SMALL if small else MOST_STALL_FREE,
            "min_capacity_ratio": MOST_MINIMUM_SMALL if small else MOST_MINIMUM,
        }
        if pathlib.Path(own["trace"]).name.split(".")[0] not in SEVERAL_STREAMS:
            limits["stall_free_capacity_ratio"] = min(
                limits["stall_free_capacity_ratio"], peer["stall_free_capacity_ratio"]
            )
        for key, most in limits.items():
            failures += not check(own["trace"], key, own[key], most)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
