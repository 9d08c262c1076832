"""The peaks that `spillway report` explains are those of the file.

usage: peaks_test.py SPILLWAY SNAPSHOT...

Reserved memory follows from the segments at the end and the segment events alone, live memory from the blocks at the
end and the block events alone; both are summed here in their own way.
"""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
from typing import Any

ADDS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
PARTS = ("live_bytes", "rounding_bytes", "pending_bytes", "inactive_split_bytes", "cached_bytes")


def read(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        data = file.read()
    loaded: dict[str, Any] = pickle.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return loaded


def highest(now: int, changes: list[int]) -> int:
    """Of a value that ends at `now`, before and after each change."""
    most = now
    for change in reversed(changes):
        now -= change
        most = max(most, now)
    return most


def check(spillway: str, path: str) -> list[str]:
    snapshot = read(path)
    events = snapshot["device_traces"][0]
    segments = [segment for segment in snapshot["segments"] if segment["device"] == 0]
    blocks = [block for segment in segments for block in segment["blocks"] if block["state"] != "inactive"]
    live = highest(
        sum(block["requested_size"] for block in blocks),
        [
            event["size"] if event["action"] == "alloc" else -event["size"]
            for event in events
            if event["action"] in ("alloc", "free_completed")
        ],
    )
    done = subprocess.run([spillway, "report", path, "--json"], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    shown = report["shown"]
    moments = {moment["name"]: moment["parts"] for moment in shown["moments"]}
    complaints = []
    for name, parts in moments.items():
        if sum(parts[part] for part in PARTS) != parts["reserved_bytes"]:
            complaints.append(f"{name}: the parts do not sum to what is reserved: {parts}")
    at_live = moments["live peak"]["live_bytes"] + moments["live peak"]["pending_bytes"]
    if at_live != live:
        complaints.append(f"live peak {at_live}, in the file {live}")
    end = sum(block["size"] for block in blocks)
    at_end = sum(moments["end"][part] for part in PARTS[:3])
    if at_end != end:
        complaints.append(f"{at_end} active at the end, in the file {end}")
    if shown["records_segments"]:
        reserved = highest(
            sum(segment["total_size"] for segment in segments),
            [ADDS[event["action"]] * event["size"] for event in events if event["action"] in ADDS],
        )
        if moments["reserved peak"]["reserved_bytes"] != reserved:
            complaints.append(f"reserved peak {moments['reserved peak']['reserved_bytes']}, in the file {reserved}")
    return [f"{path}: {complaint}" for complaint in complaints]


def main() -> int:
    complaints = [complaint for path in sys.argv[2:] for complaint in check(sys.argv[1], path)]
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
