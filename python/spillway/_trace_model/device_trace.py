"""Records a program on the simulated device, where it runs as `spillway dryrun` runs it: what fake tensors cannot show,
as compiled code, graphs, the buckets of DistributedDataParallel and the ranks of a job, PyTorch itself allocates there.

PyTorch's own allocator keeps its history, with Python's stacks. Marks in it, blocks that this module allocates and
gives back, tell where phases begin.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .._errors import SpillwayError
from .._holders import addresses_of
from .recording import MOST_FRAMES, OWN, Block, Phase, Recording, Site, Stack, stack_here

_CONVOLUTIONS = "/torch/nn/modules/conv.py"
# PyTorch's own thread lets go of some blocks a little after a backward pass.
MOST_SECONDS_OF_FREES, SECONDS_WITHOUT_ONE = 1.0, 0.02


@dataclass
class Mark:
    phase: Phase
    roles: dict[int, str] = field(default_factory=dict)  # of blocks that are live here, by where they begin


class DeviceTrace:
    """Of one process that has the simulated device."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.found: list[tuple[str, str, str]] = []

    @property
    def step(self) -> int:
        return self.marks[-1].phase.step

    def begin(self, step: int, name: str) -> None:
        """From here on what happens belongs to this phase."""
        self.marks.append(Mark(Phase(step, name)))
        for device in range(torch.cuda.device_count()):
            allocated = torch.cuda.caching_allocator_alloc(1, device)
            torch.cuda.caching_allocator_delete(allocated)  # type: ignore[no-untyped-call]

    def tell(self, holder: Any, role: str) -> None:
        """What the holder's memory is. To be called right after begin()."""
        for address in addresses_of(torch, holder):
            self.marks[-1].roles.setdefault(address, role)

    def find_here(self, kind: str, text: str) -> None:
        self.found.append((kind, text, Site(stack_here()).text))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Backward passes are phases; optimizers, which guards.optimizers_tell() watches, end one and begin one."""
        engine = torch.autograd.graph._engine_run_backward

        def run(*arguments: Any, **named: Any) -> Any:
            phase = self.marks[-1].phase
            if phase.step == 0 or phase.name != "forward":
                return engine(*arguments, **named)
            self.begin(phase.step, "backward")
            try:
                return engine(*arguments, **named)
            finally:
                self.begin(phase.step, "forward")

        owners: tuple[Any, ...] = (torch.autograd, torch.autograd.graph)
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=sys.maxsize)
        self.begin(0, "load")
        native: Any = torch._C
        record = native._cuda_record_memory_history
        native._cuda_record_memory_history = lambda *_arguments, **_named: None  # the program's would end this one
        for owner in owners:
            owner._engine_run_backward = run
        try:
            yield
        finally:
            native._cuda_record_memory_history = record
            for owner in owners:
                owner._engine_run_backward = engine

    def recording(self) -> Recording:
        """What happened until now. Errors: SpillwayError, where the history was ended meanwhile."""
        _wait_for_frees()
        self.begin(self.step, self.marks[-1].phase.name)
        torch._C._cuda_clearCublasWorkspaces()  # so that frees after this mark are of workspaces
        recording = Recording()
        for kind, text, place in self.found:
            recording.find(kind, text, place)
        for device, entries in enumerate(torch.cuda.memory._snapshot()["device_traces"]):
            _Reader(recording, device, self.marks).read(entries)
        return recording


def _wait_for_frees() -> None:
    torch.cuda.synchronize()
    deadline = time.monotonic() + MOST_SECONDS_OF_FREES
    live = -1
    while live != (live := torch.cuda.memory_allocated()) and time.monotonic() < deadline:
        time.sleep(SECONDS_WITHOUT_ONE)


class _Reader:
    """Of one device's history."""

    def __init__(self, recording: Recording, device: int, marks: list[Mark]) -> None:
        self.recording = recording
        self.device = device
        self.marks = marks
        self.seen = 0  # marks
        self.waits: Phase | None = None  # of what follows a backward pass, from its first allocation on
        self.live: dict[int, Block] = {}

    def read(self, entries: list[dict[str, Any]]) -> None:
        actions: dict[str, Callable[[dict[str, Any]], None]] = {"alloc": self._birth, "free_completed": self._death}
        for entry in entries:
            if (action := actions.get(entry["action"])) is not None:
                action(entry)
        if self.seen != len(self.marks):
            raise SpillwayError("the program ended PyTorch's history of allocations, which the trace is made of")

    def _birth(self, entry: dict[str, Any]) -> None:
        if any(frame["filename"] == __file__ and frame["name"] == "begin" for frame in entry["frames"]):
            self._reach(self.marks[self.seen])
            self.seen += 1
            return
        if self.waits is not None:
            self._begin(self.waits)
        phase = len(self.recording.phases) - 1
        site = self.recording.index(self._site(entry["frames"]))
        block = Block(entry["addr"], self.device, entry["stream"], entry["size"], site, phase)
        self.live[block.address] = block
        self.recording.birth(block)

    def _death(self, entry: dict[str, Any]) -> None:
        block = self.live.pop(entry["addr"], None)
        if block is None:  # a mark's
            return
        if self.seen == len(self.marks):
            block.role = block.role or "workspaces"
        else:
            self.recording.death(block)

    def _reach(self, mark: Mark) -> None:
        if mark.phase.name == "forward" and self.recording.phases[-1].name == "backward":
            self.waits = mark.phase
        else:
            self._begin(mark.phase)
        for address, role in mark.roles.items():
            if (block := self.live.get(address)) is not None:
                block.role = block.role or role

    def _begin(self, phase: Phase) -> None:
        self.recording.begin(phase.step, phase.name)
        self.waits = None

    def _site(self, frames: list[dict[str, Any]]) -> Site:
        stack: Stack = tuple(
            (frame["filename"], frame["line"], frame["name"])
            for frame in frames
            if not frame["filename"].startswith(OWN)
        )[:MOST_FRAMES]
        phase = self.recording.phases[-1].name
        site = Site(stack, "" if stack or phase != "backward" else "backward")
        if any(file.endswith(_CONVOLUTIONS) and function != "__init__" for file, _, function in stack):
            self.recording.find("cudnn", "cuDNN's workspaces are not counted: it is off here", site.text)
        return site
