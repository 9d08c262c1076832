"""What a stretch of a program allocates on CUDA devices: its peak, what it leaves behind, and which lines held most.

Bytes are those that the program requested, the same under every allocator. Lines come from PyTorch's own history of
memory, which is recorded meanwhile; where it is recorded already, that one is read and left on.
"""

from __future__ import annotations

import gc
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ._sizes import size_text

# The history has so many. Beyond them the oldest are lost, and with them lines.
MOST_EVENTS = 1 << 20
OWN = str(Path(__file__).resolve().parents[1])
ELSEWHERE = "no line of Python, as in a backward pass"

Frame = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """What one line of the program had at the peak."""

    place: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Peak:
    """Of one device, above what was there before."""

    device: int
    before_bytes: int
    peak_bytes: int
    left_bytes: int  # below 0 where more was freed than allocated
    lines: list[Line] = field(default_factory=list)  # the largest first; none where no history can be had


class Recording:
    """Enter it, run, leave it; then `peaks` has each device that was used, the largest first.

    PyTorch's peak counters begin anew. cuBLAS's workspaces, which the first product of a process would make for all
    later ones, are given back before, so that a stretch has the same peak wherever it comes. A device that was not in
    use is left so: the program may still choose its allocator.
    """

    def __init__(self, torch: Any, show: Callable[[Frame], str] | None = None) -> None:
        self.torch = torch
        self.show = show or (lambda frame: f"{frame['filename']}:{frame['line']} in {frame['name']}")
        self.peaks: list[Peak] = []
        self.snapshot: dict[str, Any] | None = None
        self._before: dict[int, int] = {}
        self._seen: dict[int, int] = {}  # events of a history that was there before
        self._is_on = False
        self._is_mine = False

    def __enter__(self) -> Recording:
        torch = self.torch
        self._is_on = True
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch._C._cuda_clearCublasWorkspaces()
            devices = range(torch.cuda.device_count())
            if any(self._requested(device)["current"] for device in devices):
                gc.collect()  # what earlier cycles hold would be freed meanwhile; it takes half a second with PyTorch
            for device in devices:
                self._before[device] = self._requested(device)["current"]
                torch.cuda.reset_peak_memory_stats(device)
        torch.cuda._lazy_call(self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_on = False
        torch = self.torch
        if not torch.cuda.is_initialized():
            return
        events = self._events()
        for device in range(torch.cuda.device_count()):
            before, requested = self._before.get(device, 0), self._requested(device)
            lines = self._lines(events[device]) if device < len(events) else []
            if requested["peak"] > before or requested["current"] != before:
                left = requested["current"] - before
                self.peaks.append(Peak(device, before, requested["peak"] - before, left, lines))
        self.peaks.sort(key=lambda each: -each.peak_bytes)

    def _start(self) -> None:
        """Once CUDA is in use, which may be later, or after the recording."""
        if not self._is_on:
            return
        torch = self.torch
        if self._is_recorded():
            self._seen = {at: len(trace) for at, trace in enumerate(torch.cuda.memory._snapshot()["device_traces"])}
            return
        try:
            torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS, stacks="python")
            self._is_mine = True
        except RuntimeError:  # refused, as by Spillway's plain integration: there are no lines then
            return

    def _is_recorded(self) -> bool:
        try:
            return bool(self.torch._C._cuda_isHistoryEnabled())
        except RuntimeError:  # cudaMallocAsync knows no history
            return False

    def _events(self) -> list[list[dict[str, Any]]]:
        """Of each device, and the end of a history that is this one's."""
        if not self._is_recorded():
            return []
        self.snapshot = self.torch.cuda.memory._snapshot()
        if self._is_mine:
            self.torch.cuda.memory._record_memory_history(enabled=None)
        return [trace[self._seen.get(at, 0) :] for at, trace in enumerate(self.snapshot["device_traces"])]

    def _requested(self, device: int) -> dict[str, int]:
        """PyTorch does not count requests under cudaMallocAsync: allocated bytes then."""
        is_counted = self.torch.cuda.get_allocator_backend() != "cudaMallocAsync"
        name = "requested_bytes" if is_counted else "allocated_bytes"
        stats: dict[str, int] = self.torch._C._cuda_memoryStats(device)[name]["all"]
        return stats

    def _lines(self, events: list[dict[str, Any]]) -> list[Line]:
        blocks: dict[str, list[int]] = defaultdict(list)
        for event in live_at_peak(events):
            blocks[self._place(event["frames"])].append(event["size"])
        lines = [Line(place, sum(sizes), len(sizes)) for place, sizes in blocks.items()]
        return sorted(lines, key=lambda line: (-line.bytes, line.place))

    def _place(self, frames: Iterable[Frame]) -> str:
        """The innermost line that is not PyTorch's, Python's or Spillway's."""
        frame = next((frame for frame in frames if not self._is_library(frame["filename"])), None)
        return ELSEWHERE if frame is None else self.show(frame)

    def _is_library(self, file: str) -> bool:
        if not file.endswith(".py") and not file.startswith("<"):  # of C++, in a history that the program records
            return True
        if file.startswith((str(self.torch.__path__[0]), OWN, "<frozen ")):
            return True
        return file.startswith(sysconfig.get_paths()["stdlib"]) and "site-packages" not in file


def live_at_peak(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The allocations that were live when most was; frees of what came before count too."""
    live = most = end = 0
    for index, event in enumerate(events):
        if event["action"] == "alloc":
            live += event["size"]
        elif event["action"] == "free_requested":
            live -= event["size"]
        if live > most:
            most, end = live, index + 1
    blocks: dict[int, dict[str, Any]] = {}
    for event in events[:end]:
        if event["action"] == "alloc":
            blocks[event["addr"]] = event
        elif event["action"] == "free_requested":
            blocks.pop(event["addr"], None)
    return list(blocks.values())


def lines_text(lines: list[Line], most: int) -> list[str]:
    """A line of text for each of the first `most`, and one for the rest."""
    texts = []
    for line in lines[:most]:
        blocks = f" ({line.blocks} blocks)" if line.blocks > 1 else ""
        texts.append(f"{size_text(line.bytes):>12}  {line.place}{blocks}")
    if rest := lines[most:]:
        texts.append(f"{size_text(sum(line.bytes for line in rest)):>12}  {len(rest)} more lines")
    return texts
