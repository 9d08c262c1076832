"""The section about programs that never repeat themselves, as sections.py."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from page.commands import CommandError, Commands, Unrepeated
from page.markdown import not_good, page, table


class Run(NamedTuple):
    name: str
    options: str
    bar: float  # processor time of a call, as a share of the peer's


RUNS = (
    Run("over expandable segments", "--expandable", 0.8),
    Run("over native", "", 0.8),
    Run("two threads, over expandable segments", "--expandable --threads 2", 1.3),
    Run("10^7 allocations, over expandable segments", "--expandable --calls 20000000", 0.8),
)


class Pair(NamedTuple):
    ours: Unrepeated
    peer: Unrepeated

    @property
    def time(self) -> list[float]:
        return [ours / peer for ours, peer in zip(self.ours.call_ns, self.peer.call_ns, strict=True)]


def programs(commands: Commands) -> str:
    pairs = {run: pairs_of(commands.unrepeated(run.options)) for run in RUNS}
    return page(
        "## Programs that never repeat themselves",
        "\n".join(f"    build/release/bin/bench_unrepeated {run.options}".rstrip() for run in RUNS),
        "Both allocators in turns, each on a device of its own of 80 GiB, 200,000 allocations and as many frees in "
        "an order that never comes around: serving (96 requests of 6 blocks, and temporaries), replace (512 blocks up "
        "to 64 MiB, one replaced at a time), varlen (28 layers, another length each step), drift (sizes grow and "
        "shrink), buckets (32 sizes in any order). Processor time of a call as a share of the peer's, and Spillway's "
        "driver calls, by quarter of the run; reserved over peak live:",
        table(
            "program | run | time / peer: | driver calls: | host waits: | reserved: | of the peer:",
            (
                [
                    pair.ours.program, run.name, " ".join(f"{share:.2f}" for share in pair.time),
                    " ".join(map(str, pair.ours.driver_calls)), pair.ours.host_waits,
                    f"{pair.ours.reserved:.3f}", f"{pair.peer.reserved:.3f}",
                ]
                for run, of_run in pairs.items()
                for pair in of_run
            ),
        ),
        not_good(finding for run, of_run in pairs.items() for pair in of_run for finding in findings(run, pair)),
        "How it is done, and what was tried: docs/decisions/unrepeated.md.",
    )  # fmt: skip


def pairs_of(rows: list[Unrepeated]) -> list[Pair]:
    """Spillway comes first of each program."""
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.program)]
    if alone := [group[0].program for group in groups if len(group) != 2]:
        raise CommandError(f"bench_unrepeated: no peer of {alone[0]}; PyTorch's allocator is not there")
    return [Pair(*group) for group in groups]


def findings(run: Run, pair: Pair) -> list[str]:
    found = []
    what = f"{pair.ours.program}, {run.name}"
    if (slowest := max(pair.time)) > run.bar:
        found.append(f"{what}: {slowest:.2f} of the peer's time in one quarter")
    if pair.ours.reserved > pair.peer.reserved:
        found.append(f"{what}: {pair.ours.reserved - pair.peer.reserved:.3f} of peak live more is reserved")
    return found
