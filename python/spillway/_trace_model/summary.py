"""What a recorded trace says, and the files it is written to."""

from __future__ import annotations

import itertools
import pickle
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .recording import Block, Event, Recording

# Places of the peak that are named.
MOST_SITES = 20


def write_trace(recording: Recording, path: Path) -> None:
    """As torch.cuda.memory._dump_snapshot writes it: `spillway replay` and pytorch.org/memory_viz read it."""
    frames = [
        [
            {
                "filename": file,
                "line": line,
                "name": function + (f" [{site.note}]" if site.note else ""),
            }
            for file, line, function in site.stack
        ]
        for site in recording.sites
    ]
    devices = 1 + max((event.block.device for event in recording.events), default=0)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
    for time, event in enumerate(recording.events):
        block = event.block
        row = {"addr": block.address, "size": block.size_bytes, "stream": block.stream, "time_us": time}
        for action in ("free_requested", "free_completed") if event.is_free else ("alloc",):
            traces[block.device].append({"action": action, **row, "frames": frames[block.site]})
    snapshot = {"segments": [], "device_traces": traces, "allocator_settings": {}, "external_annotations": []}
    path.write_bytes(pickle.dumps(snapshot, protocol=4))


def summary(recording: Recording) -> dict[str, Any]:
    """Of the device with the largest peak."""
    device = max(recording.peak_bytes, key=lambda each: (recording.peak_bytes[each], -each), default=0)
    events = [event for event in recording.events if event.block.device == device]
    phases, at = _peaks(recording, events)
    return {
        "device": device,
        "devices": len(recording.peak_bytes),
        "allocations": sum(not event.is_free for event in events),
        "peak_live_bytes": recording.peak_bytes.get(device, 0),
        "workspace_bytes": _most_live(event for event in events if event.block.role == "workspaces"),
        "phases": phases,
        "peak": _at_peak(recording, events, at),
        "findings": [
            {"kind": each.kind, "text": each.text, "places": [{"place": p, "count": n} for p, n in each.counts.items()]}
            for each in recording.findings.values()
        ],
    }


def _most_live(events: Iterable[Event]) -> int:
    signed = (-event.block.size_bytes if event.is_free else event.block.size_bytes for event in events)
    return max(itertools.accumulate(signed), default=0)


def _peaks(recording: Recording, events: list[Event]) -> tuple[list[dict[str, Any]], int]:
    """The peak of each phase in each step, in their order; and the event that reaches the largest."""
    peaks: dict[tuple[int, str], int] = {}
    ends: dict[tuple[int, str], int] = {}
    live = largest = at = 0
    for index, event in enumerate(events):
        phase = recording.phases[event.phase]
        key = (phase.step, phase.name)
        peaks[key] = max(peaks.get(key, 0), live)
        live += -event.block.size_bytes if event.is_free else event.block.size_bytes
        peaks[key] = max(peaks[key], live)
        ends[key] = live
        if live > largest:
            largest, at = live, index
    rows = [
        {"step": step, "phase": name, "peak_live_bytes": peak, "end_live_bytes": ends[step, name]}
        for (step, name), peak in peaks.items()
    ]
    return rows, at


def _at_peak(recording: Recording, events: list[Event], at: int) -> dict[str, Any]:
    live: dict[int, Block] = {}
    for event in events[: at + 1]:
        if event.is_free:
            live.pop(event.block.address, None)
        else:
            live[event.block.address] = event.block
    freed = {id(event.block): event.phase for event in events[at:] if event.is_free}  # addresses come again
    roles: dict[str, int] = defaultdict(int)
    sites: dict[tuple[str, str], list[int]] = defaultdict(list)
    for block in live.values():
        role = _role(recording, block, freed.get(id(block)))
        roles[role] += block.size_bytes
        sites[recording.sites[block.site].text, role].append(block.size_bytes)
    largest = sorted(sites.items(), key=lambda item: -sum(item[1]))
    phase = recording.phases[events[at].phase] if events else recording.phases[0]
    return {
        "step": phase.step,
        "phase": phase.name,
        "roles": [{"role": role, "bytes": size} for role, size in sorted(roles.items(), key=lambda item: -item[1])],
        "sites": [
            {"site": site, "role": role, "bytes": sum(sizes), "blocks": len(sizes)}
            for (site, role), sizes in largest[:MOST_SITES]
        ],
        "other_sites": max(0, len(largest) - MOST_SITES),
        "other_bytes": sum(sum(sizes) for _, sizes in largest[MOST_SITES:]),
    }


def _role(recording: Recording, block: Block, freed: int | None) -> str:
    """What was told, else by birth and death: what the forward pass leaves to the backward pass is an activation."""
    if block.role:
        return block.role
    born = recording.phases[block.phase].name
    if born == "load":
        return "made before the steps"
    if born == "forward" and freed is not None and recording.phases[freed].name == "backward":
        return "activations"
    return "other" if freed is None else "temporaries"
