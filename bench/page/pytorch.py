"""The sections about PyTorch programs, as sections.py."""

from __future__ import annotations

from page.commands import Commands, Row
from page.markdown import gib, listed, page, ratio, span, table

SIZED = ("full", "native", "expandable")
NEVER_REPEATING_BAR = 1.0  # a call may cost so much, as a share of native
# An allocation with its free may cost so much, as a share of native.
BARS = {"raw_alloc and raw_delete": 0.6, "torch.empty and its end": 0.9}


def examples(commands: Commands) -> str:
    rows = commands.pytorch("smallest_devices.py")
    lines = []
    for row in rows:
        sizes = (f"{gib(row[allocator])} ({ratio(row[allocator] / row['requested_bytes'])})" for allocator in SIZED)
        lines.append([f"`{row['example']}`", gib(row["requested_bytes"]), *sizes])
    needier = [row["example"] for row in rows if row["full"] > min(row["native"], row["expandable"])]
    return page(
        "## The smallest device for a PyTorch program",
        "    bench/pytorch/smallest_devices.py",
        "The programs of examples/pytorch, three steps each, as they are run by their users: the smallest simulated "
        "device on which a program completes, and in brackets its ratio to the peak of live requested bytes. Found by "
        "bisection to 2 MiB, as if every larger device would do as well. Spillway is the full integration; expandable "
        "is PyTorch's own allocator with `expandable_segments:True`. Of two ranks the one that needs more.",
        table("program | requested: | Spillway: | native: | expandable:", lines),
        f"Spillway needs {span((row['full'] / row['requested_bytes'] for row in rows), '.3f')} times what is live, "
        f"native {span((row['native'] / row['requested_bytes'] for row in rows), '.3f')}, expandable segments "
        f"{span((row['expandable'] / row['requested_bytes'] for row in rows), '.3f')}.",
        f"Not good: a peer needs less for {listed(needier)}." if needier else "",
    )


def counted(row: Row, allocator: str) -> str:
    instructions = row.get(f"{allocator}_instructions")
    return "" if instructions is None else f"{instructions:.0f}"


def speed(commands: Commands) -> str:
    rows = commands.pytorch("speed.py", "--instructions")
    lines = []
    for row in rows:
        share = f"{row['full_ns'] / row['native_ns']:.2f}"
        lines.append(
            [row["calls"], row["size"], share, BARS[row["calls"]], *(counted(row, name) for name in SIZED[:2])]
        )
    slow = [f"{row['calls']}, {row['size']}" for row in rows if row["full_ns"] > BARS[row["calls"]] * row["native_ns"]]
    return page(
        "## Speed under PyTorch",
        "    bench/pytorch/speed.py --instructions",
        "One thread's processor time for a pair of calls on the full integration, as a share of that on PyTorch's own "
        "allocator: two processes that are alike but for the allocator take turns, medians. The bar is what the share "
        "may be. torch.empty is called from Python, and most of its time is PyTorch's. Instructions of one pair are "
        "counted by valgrind.",
        table("calls | size | Spillway / native: | bar: | instructions, Spillway: | native:", lines),
        f"Not good: {listed(slow)} miss the bar." if slow else "",
    )


def never_repeating(commands: Commands) -> str:
    rows = {(row["program"], row["allocator"]): row for row in commands.pytorch("unrepeated.py")}
    lines, slow, large = [], [], []
    for name in dict.fromkeys(program for program, _ in rows):
        native, expandable, full = (rows[name, allocator] for allocator in ("native", "expandable", "full"))
        shares = [ours / peer for ours, peer in zip(full["call_ns"], native["call_ns"], strict=True)]
        others = [ours / peer for ours, peer in zip(full["call_ns"], expandable["call_ns"], strict=True)]
        slow += [f"{name} ({max(shares):.2f})"] if max(shares) > NEVER_REPEATING_BAR else []
        large += [name] if full["reserved_times_peak"] > expandable["reserved_times_peak"] else []
        times = (" ".join(f"{share:.2f}" for share in each) for each in (shares, others))
        reserved = (f"{row['reserved_times_peak']:.3f}" for row in (full, native, expandable))
        lines.append([name, *times, *reserved])
    return page(
        "## Programs that never repeat themselves, from Python",
        "    bench/pytorch/unrepeated.py",
        "The first three programs above, written in Python with other draws: raw_alloc and raw_delete on the full "
        "integration, on PyTorch's own allocator and on its expandable segments, in three processes that take turns. "
        "Processor time of a call, the loop in Python included, as a share of the peer's by quarter of the run; "
        "reserved over peak live:",
        table("program | time / native: | time / expandable: | reserved: | of native: | of expandable:", lines),
        f"Not good: more than native's time in a quarter: {listed(slow)}." if slow else "",
        f"Not good: more reserved than with expandable segments: {listed(large)}." if large else "",
    )
