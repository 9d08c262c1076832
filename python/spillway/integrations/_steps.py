"""The device memory of each training step, for callbacks of trainers.

A step costs two reads of PyTorch's counters for each device in use; what is shown is put together where it is logged.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from .._errors import SpillwayError, SpillwayWarning
from .._offload.tiers import tier_stats
from .._pytorch.annotate import NAMES, annotate
from .._pytorch.install import import_torch, installed
from .._pytorch.trace import mark
from ._sizes import GIB


@dataclass(frozen=True)
class Step:
    """Bytes of the device that had most live in it."""

    number: int
    device: int
    peak_bytes: int
    end_bytes: int  # live at its end
    reserved_bytes: int  # the most that the allocator held
    stalls: int  # since the program began: all streams were waited for, or the cache given back, for want of memory


@dataclass
class StepMeter:
    """begin() and end() around each step, annotate() once its model and optimizer have all that they hold, and
    metrics() where something is logged: of the steps since the last time.

    The peak counters of PyTorch begin anew with each step, unless keeps_peaks: then a step's peak is that of the run so
    far. A device that is not in use costs nothing and shows nothing.
    """

    keeps_peaks: bool = False
    over_ranks: bool = True
    annotates: bool = True
    run_peak_bytes: int = field(default=0, init=False)
    model_bytes: dict[int, dict[str, int]] = field(default_factory=dict, init=False)
    last: Step | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.begin_run()

    def begin_run(self) -> None:
        """A training, perhaps of another model than the one before."""
        self.run_peak_bytes = 0
        self.model_bytes = {}
        self.last = None
        self._highest: Step | None = None
        self._devices: list[int] = []
        self._stalls = 0  # as of the last metrics()
        self._is_model_known = False

    def begin(self, number: int) -> None:
        mark(f"step {number}")
        torch = import_torch()
        if not torch.cuda.is_initialized():
            return
        if not self._devices:
            self._devices = list(range(torch.cuda.device_count()))
            if self.last is None:
                self._stalls = max(stalls_of(torch._C._cuda_memoryStats(device)) for device in self._devices)
        if not self.keeps_peaks:
            for device in self._devices:
                torch._C._cuda_resetPeakMemoryStats(device)

    def end(self, number: int) -> None:
        torch = import_torch()
        if not torch.cuda.is_initialized():
            return
        if not self._devices:  # the first step brought CUDA into use
            self._devices = list(range(torch.cuda.device_count()))
        stats = {device: torch._C._cuda_memoryStats(device) for device in self._devices}
        self._devices = [device for device, each in stats.items() if each["reserved_bytes"]["all"]["peak"] > 0]
        steps = [step_of(number, device, stats[device]) for device in self._devices]
        if not steps:
            return
        self.last = max(steps, key=lambda each: each.peak_bytes)
        self.run_peak_bytes = max(self.run_peak_bytes, self.last.peak_bytes)
        if self._highest is None or self._highest.peak_bytes < self.last.peak_bytes:
            self._highest = self.last

    def annotate(self, model: Any, optimizer: Any) -> None:
        """Tells the model's bytes, once. What a trainer wraps in its own way may not be known: that is said."""
        if not self.annotates or self._is_model_known or not import_torch().cuda.is_initialized():
            return
        self._is_model_known = True
        try:
            self.model_bytes = annotate(model, optimizer)
        except (SpillwayError, AttributeError, TypeError, RuntimeError) as problem:
            warnings.warn(f"the bytes of the model are not told: {problem}", SpillwayWarning, stacklevel=2)

    def metrics(self) -> dict[str, float]:
        """Of the steps since the last call; nothing where there was none. Sizes are in GiB. Where over_ranks, each is
        the largest of all ranks, which have to call it together."""
        step, self._highest = self._highest, None
        self._devices = []  # a later step may use more
        if step is None:
            return {}
        values = {"stalls": self._new_stalls(), **self._sizes(step)}
        if self.over_ranks:
            values = largest_over_ranks(values)
        return {
            f"memory/{name}": round(value / GIB, 6) if name.endswith("_gib") else value
            for name, value in values.items()
        }

    def _sizes(self, step: Step) -> dict[str, int]:
        """The names are the same in each rank."""
        sizes = {
            "step_peak_gib": step.peak_bytes,
            "step_end_gib": step.end_bytes,
            "reserved_gib": step.reserved_bytes,
            "run_peak_gib": self.run_peak_bytes,
        }
        if self.annotates:
            model = self.model_bytes.get(step.device, {})
            sizes |= {name.replace("_bytes", "_gib"): model.get(name, 0) for name in NAMES}
            sizes["activation_gib"] = max(0, step.peak_bytes - sum(model.values())) if model else 0
        if installed():
            away = tier_stats(step.device)
            for tier in ("host", "disk"):
                sizes[f"{tier}_gib"] = away[f"region_{tier}_bytes"] + away[f"stash_{tier}_bytes"]
        return sizes

    def _new_stalls(self) -> int:
        assert self.last is not None
        before, self._stalls = self._stalls, self.last.stalls
        return self.last.stalls - before


def step_of(number: int, device: int, stats: dict[str, Any]) -> Step:
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return Step(number, device, allocated["peak"], allocated["current"], reserved["peak"], stalls_of(stats))


def stalls_of(stats: dict[str, Any]) -> int:
    return int(stats["num_alloc_retries"] + stats["num_sync_all_streams"])


def largest_over_ranks(values: dict[str, int]) -> dict[str, int]:
    """Of each name. Every rank has to come, with the same names: a collective, as trainers make for the loss."""
    torch = import_torch()
    ranks = torch.distributed
    if not (ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1):
        return values
    device = "cuda" if ranks.get_backend().startswith("nccl") else "cpu"
    ours = torch.tensor(list(values.values()), dtype=torch.int64, device=device)
    ranks.all_reduce(ours, op=ranks.ReduceOp.MAX)
    # The simulated device may not move bytes: a rank's own are the least.
    return {name: max(own, most) for (name, own), most in zip(values.items(), ours.tolist(), strict=True)}
