"""The end of a run: what held, what did not, and what to set meanwhile."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any

from .claims import FAILED, HELD, OPEN, SILENT, judge_all

WIDTH = 110


def indented(head: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"{head:<18}", subsequent_indent=" " * 18)


def stage_lines(results: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, stage in results["stages"].items():
        steps = stage["steps"].values()
        bad = sum(step.get("code", 0) != 0 for step in steps)
        state = "done" if stage["done"] else "not done"
        lines.append(f"{name:<8} {state:<8} {stage['seconds']:>6.1f} s  {len(steps):>3} steps, {bad} did not end well")
    return lines


def is_done(results: Mapping[str, Any]) -> bool:
    return all(stage["done"] and "problem" not in stage for stage in results["stages"].values())


def bad_steps(results: Mapping[str, Any]) -> list[str]:
    stages = results["stages"].items()
    return [
        f"{name}.{step}" for name, stage in stages for step, kept in stage["steps"].items() if kept.get("code", 0) != 0
    ]


def print_table(results: Mapping[str, Any]) -> bool:
    """Answers whether every stage is done and every claim held; simulated, whether every step ended well."""
    rows = list(judge_all(results))
    for row in rows:
        print(indented(row.outcome, row.claim["claim"]))
        if row.found and row.outcome != SILENT:
            print(indented("", f"found: {textwrap.shorten(row.found, 2 * WIDTH)}"))
        if row.outcome == FAILED and "if_not" in row.claim:
            print(indented("", f"meanwhile: {row.claim['if_not']}"))
    print()
    print("\n".join(stage_lines(results)))
    counts = Counter(row.outcome for row in rows)
    print(
        f"{counts[HELD]} held, {counts[FAILED]} did not, {counts[SILENT]} say nothing here, {counts[OPEN]} were not run"
    )
    if results.get("simulated"):
        print("all of this on the simulated device, which proves that the stages run and nothing of hardware")
        return is_done(results) and not bad_steps(results)
    return is_done(results) and counts[FAILED] == 0
