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
    Kind("cpp", 270, cpp.run),
    Kind("pytorch", 330, pytorch.run),
    Kind("offload", 150, offload.run),
    Kind("preload", 180, preload.run),
    Kind("stress", 180, stress.run),
    Kind("python", 400, python.run),
)
