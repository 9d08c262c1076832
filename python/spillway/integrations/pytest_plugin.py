"""What the marker limit_device_memory of pytest does; loaded for sessions that have a test with it.

The limit is held against the requested bytes at the test's peak, its fixtures not included, above what was live when it
began; on each device for itself. Where PyTorch finds no GPU, all tests with the marker run together in one pytest of
their own under `spillway dryrun`, and their reports are those of this session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from pytest_spillway import MARKER

from .._errors import SpillwayError
from .._library import HERE, part
from ._recording import Peak, Recording, lines_text
from ._sizes import size_bytes, size_text

# Of the peak's that a failure names.
MOST_LINES = 8
# In the pytest under `spillway dryrun`: where its reports go.
REPORTS = "SPILLWAY_PYTEST_REPORTS"
PEAK = "device_memory_peak_bytes"


class Limits:
    """The hooks. Errors: pytest.UsageError, a marker's arguments."""

    def __init__(self, config: pytest.Config, marked: list[pytest.Item]) -> None:
        self.config = config
        self.limits = {item: limit_bytes(item) for item in marked}
        self.reports: dict[str, list[dict[str, Any]]] | None = None  # by node, once they ran on a simulated device
        self.problem = ""
        self.file = os.environ.get(REPORTS, "")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if item not in self.limits or self.file or has_device():
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._simulated(item):
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

    def _simulated(self, item: pytest.Item) -> list[pytest.TestReport]:
        if self.reports is None:
            self.reports = self._run_simulated([item] if hasattr(self.config, "workerinput") else list(self.limits))
        elif item.nodeid not in self.reports:  # a worker of xdist does not know which tests will be its own
            self.reports.update(self._run_simulated([item]))
        found = self.reports.get(item.nodeid)
        if found is None:
            return [self._without_report(item)]
        return [self._report(data) for data in found]

    def _report(self, data: dict[str, Any]) -> pytest.TestReport:
        if isinstance(data["longrepr"], list):  # of a skipped test: JSON has no tuples, and reporters ask for one
            data["longrepr"] = tuple(data["longrepr"])
        report: pytest.TestReport = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
        return report

    def _run_simulated(self, items: list[pytest.Item]) -> dict[str, list[dict[str, Any]]]:
        if self.config.getoption("no_device_dryrun"):
            self.problem = "skipped: there is no GPU, and --no-device-dryrun is given"
            return {}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "reports"
            file.touch()
            try:
                command = [*dryrun(self.config.getini("spillway_gpu_memory")), *self._pytest(items)]
                done = subprocess.run(
                    command, cwd=self.config.rootpath, env=environment(file), capture_output=True, text=True
                )
                said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
                self.problem = f"it did not end on the simulated device:\n{chr(10).join(said[-20:])}"
            except (SpillwayError, OSError) as problem:
                self.problem = f"there is no GPU, and the simulated device cannot be used: {problem}"
            reports: dict[str, list[dict[str, Any]]] = {}
            for line in file.read_text().splitlines():
                data = json.loads(line)
                reports.setdefault(data["nodeid"], []).append(data)
        return reports

    def _pytest(self, items: list[pytest.Item]) -> list[str]:
        """The same tests with the same configuration, and no plugin that would write what this session writes."""
        option = self.config.option
        words = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
        words += [f"--rootdir={self.config.rootpath}", f"--import-mode={option.importmode}"]
        words += [f"-c{self.config.inipath}"] if self.config.inipath else []
        words += ["--noconftest"] if option.noconftest else []
        for name in option.plugins or []:
            words += ["-p", name]
        for setting in option.override_ini or []:
            words += ["-o", setting]
        return words + [item.nodeid for item in items]

    def _without_report(self, item: pytest.Item) -> pytest.TestReport:
        is_skip = self.problem.startswith("skipped: ")
        where: Any = (str(item.path), item.location[1] or 0, self.problem) if is_skip else self.problem
        return pytest.TestReport(
            item.nodeid,
            item.location,
            dict.fromkeys(item.keywords, 1),
            "skipped" if is_skip else "failed",
            where,
            "call",
        )


def limit_bytes(item: pytest.Item) -> int:
    marker = item.get_closest_marker(MARKER)
    assert marker is not None
    try:
        if len(marker.args) != 1 or marker.kwargs:
            raise ValueError("it takes one size, such as '2GiB'")
        return size_bytes(marker.args[0])
    except ValueError as problem:
        raise pytest.UsageError(f"{item.nodeid}: {MARKER}: {problem}") from None


def has_device() -> bool:
    try:
        import torch
    except ImportError as problem:
        raise pytest.UsageError(f"{MARKER} needs PyTorch: {problem}") from None
    return torch.cuda.is_available()


def dryrun(memory: str) -> list[str]:
    command = os.environ.get("SPILLWAY_COMMAND") or str(part("bin/spillway", "build/release/bin/spillway"))
    return [command, "dryrun", "--gpu-memory", memory, "--"]


def environment(file: Path) -> dict[str, str]:
    """The child finds the package where this one is, even from a checkout."""
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    added = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), REPORTS: str(file), "SPILLWAY_PYTHON": sys.executable}
    return {**os.environ, **added}


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
