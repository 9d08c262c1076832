"""Runs programs that spill in processes of their own, one for each seed of the late simulated device, or on a GPU."""

from __future__ import annotations

import ctypes
import os
import tempfile
import unittest
from collections.abc import Sequence
from typing import Any

import spillway
from on_seeds import ON_GPU, Outcome, Program, run
from spillway._counters import Stat, flat
from spillway._library import check, library

# Each seed costs a process for each program.
SEEDS = 1 if ON_GPU else int(os.environ.get("SPILLWAY_TEST_SEEDS", "1"))
DEVICE = "capacity:256MiB"


def on_every_seed(case: unittest.TestCase, allocator: str, programs: Sequence[Program], device: str = DEVICE) -> None:
    """No race is reported, no copy is damaged, nothing is raised."""
    chosen = os.environ.get("SPILLWAY_TEST_PROGRAM", "")
    for program in programs:
        if chosen not in name_of(program):
            continue
        for seed in range(SEEDS):
            with case.subTest(f"{name_of(program)}, {allocator}, seed {seed}"):
                outcome = run(program, allocator, seed, device)
                case.assertFalse(outcome.failure, outcome.failure)
                case.assertEqual((outcome.reports, outcome.damaged), ([], 0))
                if not ON_GPU:
                    case.assertGreater(outcome.touched, 0)


def every_seed(programs: Sequence[Program], device: str = DEVICE) -> type[unittest.TestCase]:
    """The tests of a module whose programs run under both integrations."""

    class OnEverySeed(unittest.TestCase):
        def test_full(self) -> None:
            on_every_seed(self, "spillway", programs, device)

        def test_plain(self) -> None:
            on_every_seed(self, "plain", programs, device)

    return OnEverySeed


def name_of(program: Any) -> str:
    name = getattr(program, "__name__", None)
    return str(name) if name else name_of(program.func)


def on_disk(program: Program) -> Program:
    """With a directory to spill to, of this run alone."""

    def run_there(outcome: Outcome) -> None:
        with tempfile.TemporaryDirectory() as folder:
            configure(f"spill_dir:{folder},spill_ram_backed:on")
            program(outcome)

    run_there.__name__ = f"{name_of(program)} on disk"
    return run_there


def configure(text: str) -> None:
    check(library().spw_conf_set(text.encode()))


def refused(text: str, function: Any, *arguments: Any, **named: Any) -> None:
    """Calls it, and demands an error of one line that has the text; for want of memory, a report follows."""
    try:
        function(*arguments, **named)
    except spillway.SpillwayError as problem:
        first, *rest = str(problem).splitlines()
        assert text in first and (not rest or first.startswith("CUDA out of memory")), str(problem)
    else:
        raise AssertionError(f"not refused: {text}")


class PinnedStats(ctypes.Structure):
    """The beginning of spw_pinned_stats."""

    _fields_ = [
        *flat("size version", ctypes.c_uint32),
        *flat("blocks active_bytes requested_bytes chunks reserved_bytes", Stat),
    ]


def pinned_bytes() -> int:
    stats = PinnedStats(size=ctypes.sizeof(PinnedStats))
    check(library().spw_pinned_stats_get(ctypes.byref(stats)))
    return int(stats.reserved_bytes.current)
