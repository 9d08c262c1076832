"""The peaks that `spillway report` explains are those of the file, and who holds them sums to them.

usage: peaks_test.py SPILLWAY SNAPSHOT...

Reserved memory follows from the segments at the end and the segment events alone, live memory from the blocks at the
end and the block events alone; both are summed here in their own way.
"""

from __future__ import annotations

import gzip
import json
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path
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


def page_of(command: list[str]) -> dict[str, Any]:
    """What a page of --html holds."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        done = subprocess.run([*command, "--html", str(page)], capture_output=True, text=True, check=True)
        assert re.fullmatch(r"wrote .*page\.html \([0-9.]+ [KM]iB\)\n", done.stderr), done.stderr
        found = re.search(r'id="report">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    held: dict[str, Any] = json.loads(found[1])
    return held


def sums(node: dict[str, Any], path: str, complaints: list[str]) -> None:
    """A box has room for those in it, in bytes of both files of a comparison."""
    for side in ("bytes", "before"):
        inner = sum(child[side] for child in node["children"])
        if inner > node[side]:
            complaints.append(f"{path}/{node['name']}: {inner} {side} in a box of {node[side]}")
    for child in node["children"]:
        sums(child, f"{path}/{node['name']}", complaints)


def check_flames(spillway: str, path: str, live: int) -> list[str]:
    complaints: list[str] = []
    flames = page_of([spillway, "report", path])["flames"]
    if [flame["title"] for flame in flames] != ["by stack", "by module"]:
        complaints.append(f"flames: {[flame['title'] for flame in flames]}")
    for flame in flames:
        root = flame["tree"]
        if root["bytes"] != live or sum(child["bytes"] for child in root["children"]) != live:
            complaints.append(f"{flame['title']}: the boxes sum to {root['bytes']}, the live peak is {live}")
        sums(root, flame["title"], complaints)
    for flame in page_of([spillway, "diff", path, path])["flames"]:
        root = flame["tree"]
        if (root["bytes"], root["before"]) != (live, live):
            complaints.append(f"diff {flame['title']}: {root['before']} and {root['bytes']}, the live peak is {live}")
        sums(root, f"diff {flame['title']}", complaints)
    return complaints


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
    complaints += check_flames(spillway, path, live)
    return [f"{path}: {complaint}" for complaint in complaints]


def main() -> int:
    complaints = [complaint for path in sys.argv[2:] for complaint in check(sys.argv[1], path)]
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
