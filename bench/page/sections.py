"""The sections of the page: each runs what it shows and returns its Markdown. Every measured figure in their prose is
computed, and what is not good is said where the figures say so."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from page import pytorch, unrepeated
from page.commands import Case, Commands, Row
from page.markdown import GIB, gib, listed, not_good, page, ratio, span, table

RECORDED = "../shared/snapshots/*.pickle ../shared/traces/*.gz"
SEED = 1
DRIFTING = "drifting_sizes"
ALLOCATORS = ("spillway", "native", "expandable")


def capacity(commands: Commands) -> str:
    rows = commands.replay("--compare", commands.recorded)
    return page(
        "## Capacity: how much memory a recorded run needs",
        f"    build/release/bin/spillway replay --compare {RECORDED}",
        comparison(rows),
        "Stall-free, minimum and reserved are times peak live requested bytes, capacities on a grid of 0.0005. "
        "Minimum: every larger capacity completes as well, with streams that complete at once. Stall-free: the same "
        "without a host wait, where nothing completes before the host waits. Driver calls: those that manage memory or "
        "wait on the host, with unlimited memory, steady in the tenth pass. Time / native: processor time of an "
        "allocation or a free in a loop that was warmed up, divided by that of PyTorch's native allocator; the three "
        "are measured one after the other, so that other work on the machine shifts it, more than it shifts the hit "
        "path below.",
        verdict(rows),
        "`ctest -R cli.capacity_bars` repeats the capacity columns and fails where a bar is missed.",
    )


def loops(commands: Commands) -> str:
    options = [
        f"--capacity {share}% --repeat 10 --completion {mode}"
        for share in (102, 101)
        for mode in ("instant", "run-ahead")
    ]
    runs = [commands.replay(option, commands.recorded) for option in options]
    every = [row for rows in runs for row in rows]
    # Host waits are driver calls too.
    loud = [row for row in every if row["ooms"] or row["steady_driver_calls_per_repeat"]]
    ordering = sorted({row["trace"] for row in every if row["steady_stream_waits_per_repeat"]})
    return page(
        "## Near the limit, in a loop",
        "\n".join(f"    build/release/bin/spillway replay {option} {RECORDED}" for option in options),
        "The last of ten passes on a device of so much of peak live: driver calls that manage memory or wait on the "
        "host / host waits / waits of one stream for another, on the device. Run-ahead: nothing completes before the "
        "host waits.",
        table(
            "trace | " + " | ".join(f"{percent(rows[0])}, {rows[0]['completion']}:" for rows in runs),
            ([rows[0]["trace"], *map(last_pass, rows)] for rows in zip(*runs, strict=True)),
        ),
        f"In {len(every) - len(loud)} of the {len(every)} loops the last pass makes no such call and no host wait. "
        f"Streams wait for each other in {listed(ordering)}.",
        not_good(f"{row['trace']} at {percent(row)} {row['completion']}: {last_pass(row)}" for row in loud),
        "`ctest -R cli.capacity_bars` holds driver calls and host waits at 102 %, run-ahead.",
    )


def synthetic(commands: Commands) -> str:
    rows = compared_synthetic(commands)
    return page(
        "## Synthetic traces",
        f"    bench/synthetic/make_traces.py --kind all --seed {SEED} --output /tmp/synthetic\n"
        "    build/release/bin/spillway replay --compare /tmp/synthetic/*.gz",
        "Habits of programs that the recorded traces do not show; what each imitates is in bench/synthetic/README.md. "
        "Columns as above.",
        comparison(rows),
        f"{DRIFTING} is not here for the time that its search takes; below it runs on devices of a few sizes.",
        verdict(rows),
    )


def side_streams(commands: Commands) -> str:
    steps = 10
    options = "--capacity 105% --completion run-ahead"
    trace = [commands.synthetic("sharded_two_streams", SEED, steps)]
    rows = [commands.replay(f"{options} --allocator {allocator}", trace)[0] for allocator in ALLOCATORS]
    return page(
        "## Several streams near the limit",
        f"    build/release/bin/spillway replay {options} /tmp/synthetic/sharded_two_streams.pickle.gz",
        f"One pass of {steps} training steps, counted for each step:",
        table(
            "allocator | waits of streams: | host waits: | driver calls:",
            (
                [row["allocator"]]
                + [
                    unless_out_of_memory(row, f"{row[counter] / steps:.1f}")
                    for counter in ("stream_waits", "host_waits", "driver_calls")
                ]
                for row in rows
            ),
        ),
    )


def drifting(commands: Commands) -> str:
    options = "--completion run-ahead"
    trace = [commands.synthetic(DRIFTING, SEED)]
    shares = (110, 115, 120, 125, 130, 135, 150)
    runs = {
        allocator: [commands.replay(f"{options} --allocator {allocator} --capacity {s}%", trace)[0] for s in shares]
        for allocator in ALLOCATORS
    }
    ours = runs["spillway"]
    waiting = [percent(row) for row in ours if row["ooms"] or row["host_waits"]]
    return page(
        "## Sizes that drift",
        f"    build/release/bin/spillway replay {options} --capacity 110% /tmp/synthetic/{DRIFTING}.pickle.gz",
        f"{DRIFTING}, one pass of {ours[0]['events']} allocations and frees, nothing completes before the host waits. "
        "Host waits, and for Spillway the most mappings that were live:",
        table(
            " | ".join(["capacity", *(f"{percent(row)}:" for row in ours)]),
            [
                *(
                    [name, *(unless_out_of_memory(row, row["host_waits"]) for row in rows)]
                    for name, rows in runs.items()
                ),
                ["live mappings", *(row["peak_mappings"] for row in ours)],
            ],
        ),
        not_good(
            [f"it waits at {listed(waiting)}; why, and what was tried: docs/decisions/mappings.md"] if waiting else []
        ),
    )


def long_runs(commands: Commands) -> str:
    seed = 5
    lengths = {"moe_random": 250, "kv_serving": 3000}
    options = "--capacity 102% --completion run-ahead"
    rows = commands.replay(options, [commands.synthetic(kind, seed, length) for kind, length in lengths.items()])
    return page(
        "## Random sizes for long",
        "\n".join(
            f"    bench/synthetic/make_traces.py --kind {kind} --iterations {length} --seed {seed} --output /tmp/long"
            for kind, length in lengths.items()
        )
        + f"\n    build/release/bin/spillway replay {options} /tmp/long/*.gz",
        "One pass, nothing completes before the host waits:",
        table(
            "trace | iterations: | allocations and frees: | peak live: | host waits: | mappings made: "
            "| live mappings, peak:",
            (
                [
                    row["trace"],
                    lengths[row["trace"]],
                    row["events"],
                    gib(row["peak_live_bytes"]),
                    unless_out_of_memory(row, row["host_waits"]),
                    row["driver_calls_by_kind"]["map"],
                    row["peak_mappings"],
                ]
                for row in rows
            ),
        ),
        not_good(
            f"host waits in {row['trace']}: {unless_out_of_memory(row, row['host_waits'])}"
            for row in rows
            if row["ooms"] or row["host_waits"]
        ),
    )


def driver_time(commands: Commands) -> str:
    by_call, by_mapping = (
        [
            commands.replay(f"--set-access-cost {reading} --costs {costs}", commands.recorded)
            for costs in ("cheap", "dear")
        ]
        for reading in ("per-call", "per-mapping")
    )
    return page(
        "## Time in the driver",
        f"    build/release/bin/spillway replay --json --set-access-cost per-mapping --costs dear {RECORDED}",
        "Virtual time of the first pass, seconds for each 50 GiB of peak live, by published costs of the calls (an "
        "A100): from those of the cheaper run of one program (7.6 us for a handle of 2 MiB) to those of the dearer "
        "(193 us). Whether cuMemSetAccess costs by call or by mapping is not published.",
        table(
            "trace | by call: | by mapping:",
            (
                [call[0]["trace"], seconds_from_to(*call), seconds_from_to(*mapping)]
                for call, mapping in zip(zip(*by_call, strict=True), zip(*by_mapping, strict=True), strict=True)
            ),
        ),
    )


def metadata(commands: Commands) -> str:
    def percentages(rows: list[Row]) -> dict[str, float]:
        ours = (row for row in rows if row["allocator"] == "spillway")
        return {row["trace"]: 100 * row["metadata_bytes"] / row["peak_reserved_bytes"] for row in ours}

    recorded = percentages(commands.replay("--compare", commands.recorded))
    made = percentages(compared_synthetic(commands))
    most = max(made, key=lambda trace: made[trace])
    return page(
        "## Memory of the tables",
        f"`metadata_bytes` of the comparisons above, at the minimum capacity: {span(recorded.values(), '.3f')} % of "
        f"what is reserved on recorded traces, {span(made.values(), '.3f')} % on synthetic ones, most in {most}. Not "
        "counted: host memory that the map from addresses to blocks touches (docs/decisions/open-questions.md).",
    )


def hit_path(commands: Commands) -> str:
    cases = commands.bench("--filter pair/")
    return page(
        "## Hit path",
        "    build/release/bin/bench_allocator --filter pair/",
        "An allocation and its free on one thread, Spillway through its C functions, as a share of PyTorch's native "
        "allocator in the same run (medians of interleaved repeats):",
        table(
            " | ".join(["size", *(f"{case.name.removeprefix('pair/')}:" for case in cases)]),
            [["spillway / native", *(f"{of_native(case):.2f}" for case in cases)]],
        ),
        slower(cases),
    )


def threads(commands: Commands) -> str:
    cases = commands.bench("--filter threads")
    alone = {case.name: case for case in cases if case.threads == 1}
    return page(
        "## Threads",
        "    build/release/bin/bench_allocator --filter threads",
        f"On {os.cpu_count()} processors. pair-64KiB: as above. mixed: 512 live blocks of random sizes up to 64 MiB, "
        "one replaced at a time. Speedup: pairs of all threads together, divided by those of one in the same time.",
        table(
            "case | threads: | spillway / native: | speedup, spillway: | speedup, native:",
            (
                [
                    case.name.removeprefix("threads/"),
                    case.threads,
                    f"{of_native(case):.2f}",
                    f"{alone[case.name].spillway / case.spillway:.2f}",
                    f"{alone[case.name].native / case.native:.2f}",
                ]
                for case in cases
            ),
        ),
        slower(cases),
    )


SECTIONS: dict[str, Callable[[Commands], str]] = {
    "capacity": capacity,
    "loops": loops,
    "synthetic": synthetic,
    "side-streams": side_streams,
    "drifting": drifting,
    "long": long_runs,
    "unrepeated": unrepeated.programs,
    "driver-time": driver_time,
    "metadata": metadata,
    "hit-path": hit_path,
    "threads": threads,
    "pytorch-examples": pytorch.examples,
    "pytorch-speed": pytorch.speed,
    "pytorch-unrepeated": pytorch.never_repeating,
}


def by_trace(rows: Iterable[Row]) -> Iterator[dict[str, Row]]:
    for _, group in groupby(rows, key=lambda row: str(row["trace"])):
        yield {row["allocator"]: row for row in group}


def comparison(rows: list[Row]) -> str:
    lines = []
    for group in by_trace(rows):
        for name, row in group.items():
            first = name == "spillway"
            lines.append(
                [
                    row["trace"] if first else "", gib(row["peak_live_bytes"]) if first else "", name,
                    ratio(row["stall_free_capacity_ratio"]), ratio(row["min_capacity_ratio"]),
                    ratio(row["unlimited_peak_reserved_bytes"] / row["peak_live_bytes"]),
                    "" if row["min_capacity_ratio"] is None else row["host_waits"],
                    row["unlimited_driver_calls"], row["unlimited_steady_driver_calls_per_repeat"],
                    f"{row['ns_per_event'] / group['native']['ns_per_event']:.2f}",
                ]
            )  # fmt: skip
    return table(
        "trace | peak live: | allocator | stall-free: | minimum: | reserved, unlimited: | host waits at minimum:"
        " | driver calls, first pass: | driver calls per pass, steady: | time / native:",
        lines,
    )


def compared_synthetic(commands: Commands) -> list[Row]:
    traces = [commands.synthetic(kind, SEED) for kind in commands.kinds() if kind != DRIFTING]
    return commands.replay("--compare", traces)


def verdict(rows: list[Row]) -> str:
    """Where a peer needs less memory or time, and what the first pass costs."""
    findings = []
    first_passes = []
    for group in by_trace(rows):
        ours = group.pop("spillway")
        name = ours["trace"]
        for key, what in (("stall_free_capacity_ratio", "without a stall"), ("min_capacity_ratio", "at least")):
            peer, least = min(((peer, row[key] or math.inf) for peer, row in group.items()), key=lambda pair: pair[1])
            # What the table shows decides: the grid of a capacity is rounded up to a byte.
            if round(ours[key] or math.inf, 4) > round(least, 4):
                findings.append(f"{name} needs {ratio(ours[key])} {what}, {peer} {ratio(least)}")
        native = group["native"]
        if ours["ns_per_event"] > native["ns_per_event"]:
            findings.append(
                f"{name} takes {ours['ns_per_event'] / native['ns_per_event']:.2f} times the time of native"
            )
        if steady := ours["unlimited_steady_driver_calls_per_repeat"]:
            findings.append(f"{name} makes {steady} driver calls in the tenth pass")
        first_passes.append(ours["unlimited_driver_calls"] / native["unlimited_driver_calls"])
    return not_good([*findings, f"the first pass makes {span(first_passes, '.0f')} times the driver calls of native"])


def unless_out_of_memory(row: Row, text: object) -> object:
    return "out of memory" if row["ooms"] else text


def last_pass(row: Row) -> object:
    counters = (row[f"steady_{what}_per_repeat"] for what in ("driver_calls", "host_waits", "stream_waits"))
    return unless_out_of_memory(row, " / ".join(map(str, counters)))


def percent(row: Row) -> str:
    return f"{100 * row['capacity_bytes'] / row['peak_live_bytes']:.0f} %"


def seconds_per_50_gib(row: Row) -> float:
    return float(row["virtual_driver_ns"] / 1e9 * 50 * GIB / row["peak_live_bytes"])


def seconds_from_to(cheap: Row, dear: Row) -> str:
    return f"{seconds_per_50_gib(cheap):.2f} to {seconds_per_50_gib(dear):.2f}"


def of_native(case: Case) -> float:
    return case.spillway / case.native


def slower(cases: list[Case]) -> str:
    return not_good(
        f"{case.name} on {case.threads} {'thread' if case.threads == 1 else 'threads'} takes {of_native(case):.1f} "
        "times the time of native"
        for case in cases
        if of_native(case) > 1
    )
