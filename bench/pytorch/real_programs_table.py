#!/usr/bin/env python3
"""Tables in Markdown of the lines of real_programs.py.

usage: real_programs_table.py LINES.jsonl...

Where a run is there twice, the last that ended well counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from real_workloads import WORKLOADS

ALLOCATORS = {"native": "native", "expandable": "expandable segments", "spillway": "Spillway"}
GIB = 1 << 30
Line = dict[str, Any]
Runs = dict[str, Line]  # by allocator
Cell = Callable[[Line, Line], str]  # of a run and of the native one


def whole_runs(lines: Iterable[Line]) -> dict[str, Runs]:
    found: dict[str, Runs] = {}
    for line in lines:
        if "smallest_share" in line or "of_bytes" in line or "limit" in line:
            continue
        runs = found.setdefault(line["program"], {})
        if line.get("survived") or not runs.get(line["allocator"], {}).get("survived"):
            runs[line["allocator"]] = line
    return found


def searches(lines: Iterable[Line]) -> dict[str, Runs]:
    found: dict[str, Runs] = {}
    for line in lines:
        if "smallest_share" in line:
            found.setdefault(line["program"], {})[line["allocator"]] = line
    return found


def reserved(run: Line, native: Line) -> str:
    return f"{run['peak_reserved_bytes'] / native['peak_allocated_bytes']:.3f}"


def allocated(run: Line, native: Line) -> str:
    return f"{run['peak_allocated_bytes'] / native['peak_allocated_bytes']:.3f}"


def median_of_rest(run: Line, native: Line) -> str:
    return f"{run['rest_median_ms'] / native['rest_median_ms']:.3f}"


def total(run: Line, native: Line) -> str:
    both = [line["first_total_ms"] + line["rest_total_ms"] for line in (run, native)]
    return f"{both[0] / both[1]:.3f}"


def calls(run: Line, _: Line) -> str:
    return f"{sum(run['driver_calls_last_half'].values()):,}" if "driver_calls_last_half" in run else ""


def same(run: Line, native: Line) -> str:
    if run["digest"] == native["digest"]:
        return "the same bits"
    pairs = [(a, b) for a, b in zip(run["losses"], native["losses"], strict=False) if None not in (a, b)]
    if not pairs:
        return "no numbers"
    worst = max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs)
    return f"within {worst:.1e}"


def cell(runs: Runs, allocator: str, make: Cell) -> str:
    """Empty where it did not run; why it failed stands below the table."""
    run, native = runs.get(allocator, {}), runs.get("native", {})
    if not run:
        return ""
    if not run.get("survived"):
        return "failed"
    try:
        return make(run, native)
    except (KeyError, ZeroDivisionError):
        return "?"


def row(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"


def head(first: str, names: list[str]) -> list[str]:
    return [row([first, *names]), row(["---", *("---:" for _ in names)])]


def memory_and_time(found: dict[str, Runs]) -> list[str]:
    names = ["peak allocated"]
    names += [f"reserved, {name}" for name in ALLOCATORS.values()]
    names += ["step, expandable segments", "step, Spillway", "whole, expandable segments", "whole, Spillway"]
    lines = head("program", [*names, "driver's calls, last half", "losses, Spillway"])
    for program, runs in found.items():
        native = runs.get("native", {})
        peak = native.get("peak_allocated_bytes", 0) / GIB
        words = [WORKLOADS[program].says if program in WORKLOADS else program, f"{peak:.2f} GiB" if peak else ""]
        words += [cell(runs, name, reserved) for name in ALLOCATORS]
        words += [cell(runs, name, make) for make in (median_of_rest, total) for name in ("expandable", "spillway")]
        lines.append(row([*words, cell(runs, "spillway", calls), cell(runs, "spillway", same)]))
    return lines


def absolute(found: dict[str, Runs]) -> list[str]:
    lines = head("program", ["steps", *(f"{name}, ms a step" for name in ALLOCATORS.values()), "retries, native"])
    for program, runs in found.items():
        native = runs.get("native", {})
        times = [cell(runs, name, lambda run, _: f"{run['rest_median_ms']:.1f}") for name in ALLOCATORS]
        lines.append(row([f"`{program}`", str(native.get("steps", "")), *times, str(native.get("retries", ""))]))
    return lines


def smallest(found: dict[str, Runs]) -> list[str]:
    lines = head("program", ["of", *ALLOCATORS.values()])
    for program, runs in found.items():
        of = next(iter(runs.values()))["of_bytes"] / GIB
        shares = [share_of(runs.get(name)) for name in ALLOCATORS]
        lines.append(row([WORKLOADS[program].says if program in WORKLOADS else program, f"{of:.2f} GiB", *shares]))
    return lines


def share_of(line: Line | None) -> str:
    if line is None:
        return ""
    return "more than 1.5" if line["smallest_share"] is None else f"{line['smallest_share']:g}"


def failures(lines: Iterable[Line]) -> list[str]:
    return [
        f"- {line['program']}, {ALLOCATORS[line['allocator']]}: {str(line['error'])[:200]}"
        for line in lines
        if "error" in line and "limit" not in line
    ]


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(f"real_programs_table.py: no file is named.\n\n{__doc__}")
    lines = [json.loads(text) for name in sys.argv[1:] for text in Path(name).read_text().splitlines() if text.strip()]
    whole, searched = whole_runs(lines), searches(lines)
    device = next((line["device"] for line in lines if "device" in line), "no device")
    print(f"On {device}; reserved is over what PyTorch's own allocator has allocated at most, times over its own.\n")
    print("\n".join([*memory_and_time(whole), "", *absolute(whole)]))
    if searched:
        print("\nThe smallest limit that is survived, over the same:\n")
        print("\n".join(smallest(searched)))
    if failed := failures(lines):
        print("\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
