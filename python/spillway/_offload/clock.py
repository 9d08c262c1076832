"""What a device's clock shows when its streams come to a place, by CUDA events."""

from __future__ import annotations

from typing import Any, Protocol

from .._pytorch.install import import_torch


class Clock(Protocol):
    """Marks are places in streams, in stream order."""

    def mark(self, stream: Any) -> Any: ...
    def is_past(self, mark: Any) -> bool:
        """Whether the device has come there."""

    def ns(self, first: Any, second: Any) -> float:
        """From the first to the second, below 0 where that came before. Of marks that are past."""


class Events:
    """The clock of a device, in steps of about half a microsecond."""

    def mark(self, stream: Any) -> Any:
        event = import_torch().cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def is_past(self, mark: Any) -> bool:
        return bool(mark.query())

    def ns(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) * 1e6
