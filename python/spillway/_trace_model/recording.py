"""What is recorded of a program: every birth and death of device memory, with the line that asked for it and the phase.

fake_trace.py records it on fake tensors, device_trace.py on the simulated device; summary.py says what it amounts to.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

TORCH = str(Path(torch.__file__).parent)
OWN = str(Path(__file__).parents[1])
# Frames kept for each place of the program, the innermost first.
MOST_FRAMES = 32

# File, line and function of each frame.
Stack = tuple[tuple[str, int, str], ...]


@dataclass
class Block:
    """One allocation. Roles are told later, by who holds it."""

    address: int
    device: int
    stream: int
    size_bytes: int
    site: int  # index into Recording.sites
    phase: int  # index into Recording.phases
    role: str = ""


@dataclass
class Event:
    """A birth or a death."""

    block: Block
    is_free: bool
    phase: int


@dataclass(frozen=True)
class Site:
    """A place of the program. In the backward pass on fake tensors, the place of the forward pass whose node runs."""

    stack: Stack
    note: str = ""

    @property
    def text(self) -> str:
        """The innermost line that is the user's own."""
        if not self.stack:
            return self.note or "an unknown line"
        own = [place for place in self.stack if not is_library(place[0])]
        file, line, function = (own or list(self.stack))[0]
        return f"{file}:{line} in {function}" + (f" ({self.note})" if self.note else "")


@dataclass
class Phase:
    """A stretch of the run: step 0 is the making of the model."""

    step: int
    name: str  # "load", "forward", "backward", "optimizer"


@dataclass
class Finding:
    """What makes the trace inexact, and where."""

    kind: str
    text: str
    counts: dict[str, int] = field(default_factory=dict)  # by place


def is_library(path: str) -> bool:
    """PyTorch's, or what it compiles, or Python's, or Spillway's."""
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or "<frozen"
    return path.startswith((TORCH, OWN, compiled, "<frozen")) or _is_standard(path)


@functools.cache
def _is_standard(path: str) -> bool:
    """Of Python's own library, below which some installations have packages."""
    paths = sysconfig.get_paths()
    return path.startswith(paths["stdlib"] + os.sep) and not path.startswith(paths["purelib"] + os.sep)


def stack_here() -> Stack:
    """The Python frames outside of this package, the innermost first."""
    places: list[tuple[str, int, str]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(places) < MOST_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(OWN):
            places.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(places)


class Recording:
    """Of one process. Thread-safe."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.sites: list[Site] = []
        self.phases: list[Phase] = [Phase(0, "load")]
        self.findings: dict[str, Finding] = {}
        self.live_bytes: dict[int, int] = {}  # by device, as peak_bytes
        self.peak_bytes: dict[int, int] = {}
        self._lock = threading.RLock()
        self._site_index: dict[Site, int] = {}

    @property
    def step(self) -> int:
        return self.phases[-1].step

    def begin(self, step: int, name: str) -> None:
        """From here on what happens belongs to this phase."""
        with self._lock:
            if (self.phases[-1].step, self.phases[-1].name) != (step, name):
                self.phases.append(Phase(step, name))

    def find(self, kind: str, text: str, place: str, times: int = 1) -> None:
        """Notes what makes the trace inexact, where, and how often."""
        with self._lock:
            counts = self.findings.setdefault(kind, Finding(kind, text)).counts
            counts[place] = counts.get(place, 0) + times

    def index(self, site: Site) -> int:
        with self._lock:
            index = self._site_index.setdefault(site, len(self.sites))
            if index == len(self.sites):
                self.sites.append(site)
            return index

    def birth(self, block: Block) -> None:
        """A block without bytes is no event."""
        with self._lock:
            if block.size_bytes > 0:
                self.events.append(Event(block, False, len(self.phases) - 1))
                live = self.live_bytes[block.device] = self.live_bytes.get(block.device, 0) + block.size_bytes
                self.peak_bytes[block.device] = max(self.peak_bytes.get(block.device, 0), live)

    def death(self, block: Block) -> None:
        with self._lock:
            if block.size_bytes > 0:
                self.events.append(Event(block, True, len(self.phases) - 1))
                self.live_bytes[block.device] -= block.size_bytes

    def forget(self) -> None:
        """Drops all events and places; findings and phases stay."""
        with self._lock:
            self.events.clear()
            self.sites.clear()
            self._site_index.clear()
            self.live_bytes.clear()
            self.peak_bytes.clear()
