"""Dumps of many ranks, and what merging them costs.

usage: ranks.py SPILLWAY [--ranks N] [--blocks N] [--keep FOLDER]

Writes one dump for each rank of a job that never ran: most ranks hold the same model, a few have an imbalance, another
limit or ran out of memory. Then merges them with `spillway report` and prints seconds, the highest memory of the
command, and whether it named the ranks that differ. Exit code 1 where it did not.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
POOLED = (
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "requested_bytes",
    "segment",
    "reserved_bytes",
    "inactive_split",
    "inactive_split_bytes",
)
RUNGS = ("completed_frees", "view", "new_pages", "device_wait", "host_wait", "steal", "evict", "out_of_memory")


def stat(current: int, peak: int) -> dict[str, Any]:
    one = {"current": current, "peak": peak, "allocated": peak, "freed": peak - current}
    return {"all": one, "small_pool": dict.fromkeys(one, 0), "large_pool": one}


def segment(address: int, draw: random.Random, blocks: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    at = address
    for _ in range(blocks):
        size = draw.randrange(1, 8 * MIB // 512) * 512
        live = draw.random() < 0.8
        state = "active_allocated" if live else "inactive"
        requested = size - draw.randrange(0, 512) if live else 0
        rows.append({"address": at, "size": size, "requested_size": requested, "state": state})
        at += size
    active = sum(row["size"] for row in rows if row["state"] != "inactive")
    return {
        "address": address,
        "total_size": at - address,
        "allocated_size": active,
        "active_size": active,
        "requested_size": sum(row["requested_size"] for row in rows),
        "stream": 0,
        "pool": [0, 0],
        "blocks": rows,
    }


def dump_of(rank: int, draw: random.Random, blocks: int) -> dict[str, Any]:
    """Of a rank; `blocks` in segments of 50."""
    segments = [segment((0x7F00 + i) << 32, draw, min(50, blocks - 50 * i)) for i in range((blocks + 49) // 50)]
    reserved = sum(row["total_size"] for row in segments)
    active = sum(row["active_size"] for row in segments)
    requested = sum(row["requested_size"] for row in segments)
    stats: dict[str, Any] = {name: stat(0, 0) for name in POOLED}
    stats["requested_bytes"] = stat(requested, requested)
    stats["allocated_bytes"] = stats["active_bytes"] = stat(active, active)
    stats["reserved_bytes"] = stat(reserved, reserved)
    stats["inactive_split_bytes"] = stat(reserved - active, reserved - active)
    stats |= {"cached_free_bytes": 0, "largest_free_bytes": 8 * MIB, "num_ooms": 0, "num_alloc_retries": 0}
    stats["rungs"] = {name: {"hits": 0, "time_ns": 0} for name in RUNGS}
    return {
        "schema_version": 1,
        "library_version": "0.1.0",
        "process_id": 1000 + rank,
        "rank": rank,
        "time_seconds": 1_700_000_000,
        "config": {"limit": "unlimited", "share_edges": "true"},
        "devices": [
            {
                "device": 0,
                "name": "a device",
                "uuid": f"GPU-{rank}",
                "total_bytes": 80 << 30,
                "stats": stats,
                "annotations": {},
                "segments": segments,
            }
        ],
    }


def write_ranks(folder: Path, ranks: int, blocks: int) -> tuple[int, set[int], str]:
    """Bytes of the dumps, the ranks that peak, and the label of the one whose limit differs."""
    draw = random.Random(1)
    model = dump_of(0, draw, blocks)
    peaked = {ranks // 3, ranks // 2}
    written = 0
    for rank in range(ranks):
        dump = copy.copy(model)
        dump |= {"rank": rank, "process_id": 1000 + rank}
        device = copy.copy(model["devices"][0])
        stats = dict(device["stats"])
        reserved = stats["reserved_bytes"]["all"]["current"]
        wobble = draw.randrange(0, 16) * 2 * MIB
        stats["reserved_bytes"] = stat(reserved, reserved + wobble + (reserved if rank in peaked else 0))
        device["stats"] = stats
        dump["devices"] = [device]
        if rank == ranks - 1:
            dump["config"] = {**model["config"], "limit": "70GiB"}
        text = json.dumps(dump, indent=1)
        written += len(text)
        (folder / f"rank{rank}.json").write_text(text)
    return written, peaked, f"rank {ranks - 1}, device 0"


def merge(spillway: str, folder: Path, ranks: int, blocks: int) -> int:
    written, peaked, differs = write_ranks(folder, ranks, blocks)
    files = [str(folder / f"rank{rank}.json") for rank in range(ranks)]
    start = time.monotonic()
    done = subprocess.run([spillway, "report", "--json", *files], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{ranks} ranks, {blocks} blocks each, {written / MIB:.0f} MiB of dumps: {seconds:.2f} s, "
        f"{used.ru_utime + used.ru_stime:.2f} s of processors, at most {used.ru_maxrss / 1024:.0f} MiB"
    )
    if done.returncode != 0:
        print(done.stderr, end="")
        return 1
    report = json.loads(done.stdout)
    outliers = {report["ranks"][i]["rank"] for i in report["outliers"]}
    named = [label for difference in report["differences"] for label in difference["ranks"]]
    if len(report["ranks"]) != ranks or outliers != peaked or named != [differs]:
        print(f"{len(report['ranks'])} ranks, outliers {outliers}, expected {peaked}; differ: {named}")
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("spillway")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=1500)
    parser.add_argument("--keep", type=Path, help="a folder for the dumps, which stay there")
    chosen = parser.parse_args()
    if chosen.keep:
        chosen.keep.mkdir(parents=True, exist_ok=True)
        return merge(chosen.spillway, chosen.keep, chosen.ranks, chosen.blocks)
    with tempfile.TemporaryDirectory() as folder:
        return merge(chosen.spillway, Path(folder), chosen.ranks, chosen.blocks)


if __name__ == "__main__":
    sys.exit(main())
