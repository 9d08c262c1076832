"""Runs the programs that measure: spillway replay, bench_allocator, bench_unrepeated, make_traces.py, and those of
bench/pytorch.

What a command answered is kept, so that sections may ask for the same thing. A command that fails raises CommandError,
whose one line names it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

BENCH = Path(__file__).resolve().parent.parent
MAKE_TRACES = BENCH / "synthetic" / "make_traces.py"
PYTORCH = BENCH / "pytorch"
# It has PyTorch.
PYTHON = BENCH.parent / ".venv" / "bin" / "python"
# One trace and allocator, by the keys of `spillway replay --json`.
Row = dict[str, Any]
Command = list[str | Path]


class CommandError(Exception):
    """Its text is one line that names the command."""


class Case(NamedTuple):
    """A case of bench_allocator: nanoseconds of wall time over the pairs of all threads."""

    name: str
    threads: int
    spillway: float
    native: float


class Unrepeated(NamedTuple):
    """A program of bench_unrepeated on one allocator, by quarter of the run where there are four figures."""

    program: str
    allocator: str
    call_ns: tuple[float, ...]  # of processor time
    driver_calls: tuple[int, ...]
    host_waits: int
    reserved: float  # the most, over the most that was live


@dataclass(frozen=True)
class Commands:
    build: Path  # of the programs
    shared: Path  # snapshots/*.pickle and traces/*.gz
    scratch: Path  # where synthetic traces go
    answers: dict[tuple[str, ...], str] = field(default_factory=dict)

    @cached_property
    def recorded(self) -> list[Path]:
        found = sorted(self.shared.glob("snapshots/*.pickle")) + sorted(self.shared.glob("traces/*.gz"))
        if not found:
            raise CommandError(f"{self.shared}: no trace in snapshots/*.pickle and traces/*.gz")
        return found

    def synthetic(self, kind: str, seed: int, iterations: int | None = None) -> Path:
        folder = self.scratch / f"seed-{seed}-{iterations or 'default'}"
        length = [f"--iterations={iterations}"] if iterations else []
        self._answer([sys.executable, MAKE_TRACES, f"--kind={kind}", f"--seed={seed}", f"--output={folder}", *length])
        return folder / f"{kind}.pickle.gz"

    def kinds(self) -> list[str]:
        listing = self._answer([sys.executable, MAKE_TRACES, "--list"])
        return [line.split()[0] for line in listing.splitlines()]

    def replay(self, options: str, traces: Iterable[Path]) -> list[Row]:
        """A row for each trace; "trace" is its short name. Where one runs out of memory, its row says so."""
        command: Command = [self.build / "bin" / "spillway", "replay", "--json", *options.split(), *traces]
        try:
            rows: list[Row] = json.loads(self._answer(command, out_of_memory=2))
            for row in rows:
                row["trace"] = Path(row["trace"]).name.split(".")[0]
        except (ValueError, TypeError, KeyError) as error:
            raise CommandError(f"{shown(command)}: no answer of the form expected: {error!r}") from None
        return rows

    def bench(self, options: str) -> list[Case]:
        command: Command = [self.build / "bin" / "bench_allocator", *options.split()]
        try:
            lines = [line.split() for line in self._answer(command).splitlines()[1:]]
            return [Case(name, int(threads), float(ours), float(native)) for name, threads, ours, native, _ in lines]
        except ValueError as error:
            raise CommandError(f"{shown(command)}: no answer of the form expected: {error}") from None

    def unrepeated(self, options: str) -> list[Unrepeated]:
        command: Command = [self.build / "bin" / "bench_unrepeated", *options.split()]
        rows = []
        try:
            for line in self._answer(command).splitlines()[1:]:
                program, allocator, *figures = line.split()
                if allocator == "ratio":
                    continue
                calls = tuple(map(int, figures[4:8]))
                rows.append(
                    Unrepeated(
                        program, allocator, tuple(map(float, figures[:4])), calls, int(figures[8]), float(figures[9])
                    )
                )
        except (ValueError, IndexError) as error:
            raise CommandError(f"{shown(command)}: no answer of the form expected: {error}") from None
        return rows

    def pytorch(self, script: str, *options: str) -> list[Row]:
        command: Command = [PYTHON, PYTORCH / script, f"--build={self.build}", *options]
        try:
            rows: list[Row] = json.loads(self._answer(command))
        except ValueError as error:
            raise CommandError(f"{shown(command)}: no answer of the form expected: {error}") from None
        return rows

    def _answer(self, command: Command, out_of_memory: int = 0) -> str:
        key = tuple(map(str, command))
        if key not in self.answers:
            self.answers[key] = _run(command, (0, out_of_memory))
        return self.answers[key]


def shown(command: Command) -> str:
    return shlex.join(map(str, command))


def _run(command: Command, good: tuple[int, ...]) -> str:
    words = [word.name if isinstance(word, Path) else word for word in command if word != sys.executable]
    files = sum(isinstance(word, Path) for word in command[1:])
    brief = f"{shlex.join(words[:-files])} ({files} traces)" if files > 1 else shlex.join(words)
    print(f"  {brief} ...", end="", file=sys.stderr, flush=True)
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CommandError(f"{shown(command)}: {error.strerror}") from None
    finally:
        print(f" {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    if done.returncode not in good:
        complaint = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise CommandError(f"{shown(command)}: exit code {done.returncode}: {complaint}")
    return done.stdout
