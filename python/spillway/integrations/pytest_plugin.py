"""What the marker limit_device_memory of pytest does; loaded for sessions that have a test with it.

The limit is held against the requested bytes at the test's peak, its fixtures not included, above what was live when it
began; on each device for itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from pytest_spillway import MARKER

from ._dry_tests import REPORTS, DryTests
from ._recording import Peak, Recording, lines_text
from ._sizes import size_bytes, size_text

# A failure names so many of the peak's.
MOST_LINES = 8
PEAK = "device_memory_peak_bytes"


class Limits:
    """The hooks. Errors: pytest.UsageError, a marker's arguments."""

    def __init__(self, config: pytest.Config, marked: list[pytest.Item]) -> None:
        self.config = config
        self.limits = {item: limit_bytes(item) for item in marked}
        self.dry_tests = DryTests(config, marked)
        self.file = os.environ.get(REPORTS, "")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if item not in self.limits or self.file or has_device():
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in [*self.dry_tests.reports_of(item), *torn_down(item, nextitem)]:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if item not in self.limits:
            return (yield)
        import torch

        root = item.config.rootpath
        with Recording(torch, lambda frame: place(frame, root)) as recording:
            result = yield
        most = recording.peaks[0] if recording.peaks else None
        item.user_properties.append((PEAK, most.peak_bytes if most else 0))
        if most is not None and most.peak_bytes > self.limits[item]:
            pytest.fail(complaint(most, self.limits[item]), pytrace=False)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """On the simulated device: for the session that started this one."""
        if self.file:
            data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
            with open(self.file, "a") as file:
                file.write(json.dumps(data, default=str) + "\n")


def limit_bytes(item: pytest.Item) -> int:
    marker = item.get_closest_marker(MARKER)
    assert marker is not None
    try:
        if len(marker.args) != 1 or marker.kwargs:
            raise ValueError("it takes one size, such as '2GiB'")
        return size_bytes(marker.args[0])
    except ValueError as problem:
        raise pytest.UsageError(f"{item.nodeid}: {MARKER}: {problem}") from None


def torn_down(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """What tests before this one left set up for it and is not of the next one either; a report of what went wrong."""
    call = pytest.CallInfo.from_call(
        lambda: item.session._setupstate.teardown_exact(nextitem),
        "teardown",
        reraise=(pytest.exit.Exception, KeyboardInterrupt),
    )
    if call.excinfo is None:
        return []
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return [report]


def has_device() -> bool:
    try:
        import torch
    except ImportError as problem:
        raise pytest.UsageError(f"{MARKER} needs PyTorch: {problem}") from None
    return torch.cuda.is_available()


def place(frame: Any, root: Path) -> str:
    path = Path(frame["filename"])
    shown = path.relative_to(root) if path.is_relative_to(root) else path
    return f"{shown}:{frame['line']} in {frame['name']}"


def complaint(peak: Peak, limit: int) -> str:
    lines = [
        f"the test had {size_text(peak.peak_bytes)} of device memory at its peak on cuda:{peak.device}, and its limit "
        f"is {size_text(limit)} ({peak.peak_bytes} of {limit} bytes)",
    ]
    if peak.lines:
        lines += ["which held it then:", *lines_text(peak.lines, MOST_LINES)]
    return "\n".join(lines)
