"""The stages, in the order in which they run. Together they end within half an hour, each within nine minutes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..running import Stage
from . import cpp, facts, offload, preload, probe, python, pytorch, stress


@dataclass(frozen=True)
class Kind:
    name: str
    seconds: float
    run: Callable[[Stage], None]


STAGES = (
    Kind("facts", 60, facts.run),
    Kind("probe", 200, probe.run),
    Kind("cpp", 240, cpp.run),
    Kind("pytorch", 300, pytorch.run),
    Kind("offload", 150, offload.run),
    Kind("preload", 160, preload.run),
    Kind("stress", 160, stress.run),
    Kind("python", 480, python.run),
)
