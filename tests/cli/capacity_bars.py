"""Holds the capacity that Spillway needs on recorded traces below its bars, and beside PyTorch's expandable segments.

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


def replay(spillway: str, allocator: str, traces: list[str]) -> list[dict[str, Any]]:
    command = [spillway, "replay", "--json", "--capacity", "min", "--allocator", allocator, *traces]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{allocator}: exit {done.returncode}: {done.stderr.strip()}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def main() -> int:
    spillway, traces = sys.argv[1], sys.argv[2:]
    failures = 0
    ours = replay(spillway, "spillway", traces)
    peers = replay(spillway, "expandable", traces)
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
            kept = own[key] <= most + 1e-9
            failures += not kept
            print(f"{own['trace']}: {key} {own[key]:.4f}, at most {most:.4f}: {'kept' if kept else 'BROKEN'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
