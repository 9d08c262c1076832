"""Training under PyTorch: the same bits on every allocator, a step's time, and the smallest limit that is survived."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..running import Stage

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "training.py"
T = TypeVar("T")
ALLOCATORS = ("native", "expandable", "spillway")
NEVER_REPEATS = PROGRAM.with_name("unrepeated.py")
SHARES = (0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5)  # of what training takes at its peak
SMALL = ("--width", "128", "--layers", "2", "--steps", "8", "--batch", "4")


def train(
    stage: Stage, step: str, allocator: str, *words: str, seconds: float = 90, preload: bool = False
) -> dict[str, Any]:
    """What the program printed; {} where it did not end well."""
    small = SMALL if stage.machine.simulated else ()
    made = stage.python(step, PROGRAM, allocator, *small, *words, seconds=seconds, preload=preload)
    return dict(made.get("json", {})) if made.get("code") == 0 else {}


def each_allocator(stage: Stage, find: Callable[[str], T]) -> dict[str, T]:
    """Side by side, so for what measures no time."""
    found: dict[str, T] = {}

    def of(name: str) -> None:
        found[name] = find(name)

    stage.side_by_side(partial(of, name) for name in ALLOCATORS)
    return found


def same(first: dict[str, Any], second: dict[str, Any], key: str) -> bool | None:
    if key not in first or key not in second:
        return None
    return bool(first[key] == second[key])


def silent(stage: Stage) -> list[str]:
    """What means nothing where no kernel computes: losses are what lay in memory, and time is the host's."""
    return ["same_losses", "step_times_native", "unrepeated_times_native"] if stage.machine.simulated else []


def exact(stage: Stage) -> None:
    found = each_allocator(stage, lambda name: train(stage, f"exact.{name}", name, "--exact", seconds=100))
    native, ours = found["native"], found["spillway"]
    stage.found(
        same_losses=same(native, ours, "losses"),
        same_weights=same(native, ours, "weights"),
        driver_calls_when_steady=sum(ours["driver_calls"].values()) if "driver_calls" in ours else None,
        says_nothing=silent(stage),
    )


def speed(stage: Stage) -> None:
    found = {name: train(stage, f"speed.{name}", name) for name in ALLOCATORS}
    times = {name: step["median_step_ms"] for name, step in found.items() if step}
    if times.get("native") and "spillway" in times:
        stage.found(median_step_ms=times, step_times_native=round(times["spillway"] / times["native"], 4))


def unrepeated(stage: Stage) -> None:
    """Wall time a call by program, the sum of its quarters over that of PyTorch's own allocator."""
    words = ("--calls", "4000", "--program", "replace") if stage.machine.simulated else ()
    times: dict[str, dict[str, int]] = {}
    for name in ALLOCATORS:
        step = stage.python(f"unrepeated.{name}", NEVER_REPEATS, name, *words, seconds=90)
        if step.get("code") == 0:
            times[name] = {program: sum(each["wall_ns"]) for program, each in step["json"].items()}
    if "native" in times and "spillway" in times:
        native = times["native"]
        shares = {program: round(ns / native[program], 3) for program, ns in times["spillway"].items()}
        stage.found(unrepeated_times_native=shares)


def smallest_share(stage: Stage, allocator: str, peak: int) -> float | None:
    """Of SHARES, found by halves: a limit that is survived is taken to mean that larger ones are."""
    low, high = 0, len(SHARES)
    while low < high:
        middle = (low + high) // 2
        share = SHARES[middle]
        limit = str(int(peak * share))
        step = train(stage, f"limit.{allocator}.{share}", allocator, "--varied", "--limit", limit)
        if not step:
            return None
        if step["survived"]:
            high = middle
        else:
            low = middle + 1
    return SHARES[low] if low < len(SHARES) else None


def limits(stage: Stage) -> None:
    unlimited = train(stage, "limit.peak", "native", "--varied")
    if not unlimited:
        return
    shares = each_allocator(stage, lambda name: smallest_share(stage, name, unlimited["peak_allocated_bytes"]))
    stage.found(peak_allocated_bytes=unlimited["peak_allocated_bytes"], smallest_limit_share=shares)


def run(stage: Stage) -> None:
    speed(stage)
    unrepeated(stage)
    exact(stage)
    limits(stage)
