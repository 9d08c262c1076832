"""Tests with the marker where PyTorch finds no GPU: they run together in another pytest, under `spillway dryrun`, whose
reports are those of this session.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from .._command import command_path
from .._errors import SpillwayError
from .._library import HERE

# In that pytest: the file that its reports go to.
REPORTS = "SPILLWAY_PYTEST_REPORTS"
# So many of what it printed are shown where it has no report of a test.
MOST_LINES = 20

Reports = dict[str, list[dict[str, Any]]]  # by node


class DryTests:
    """Of the workers of one session of xdist the first that needs it runs all, and the others wait and read."""

    def __init__(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self.config = config
        self.items = items
        self.reports: Reports | None = None
        self.problem = ""

    def reports_of(self, item: pytest.Item) -> list[pytest.TestReport]:
        if self.config.getoption("no_device_dryrun"):
            where = (str(item.path), item.location[1] or 0, "there is no GPU, and --no-device-dryrun is given")
            return [report_of(item, "skipped", where)]
        if self.reports is None:
            self._run()
            assert self.reports is not None
        found = self.reports.get(item.nodeid, [])
        reports = [self._report(data) for data in found]
        if not any(report.when == "teardown" for report in reports):
            reports.append(report_of(item, "failed", self.problem))
        return reports

    def _report(self, data: dict[str, Any]) -> pytest.TestReport:
        if isinstance(data["longrepr"], list):  # of a skipped test: JSON has no tuples, and reporters ask for one
            data["longrepr"] = tuple(data["longrepr"])
        report: pytest.TestReport = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
        return report

    def _run(self) -> None:
        with tempfile.TemporaryDirectory() as own:
            is_worker = hasattr(self.config, "workerinput")
            factory: Any = getattr(self.config, "_tmp_path_factory", None)
            folder = factory.getbasetemp().parent if is_worker and factory else Path(own)  # as xdist's page has it
            file, said = folder / "spillway-reports", folder / "spillway-said"
            with open(folder / "spillway-lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not said.exists():
                    file.touch()
                    said.write_text(self._said(file, own))
            self.problem = said.read_text()
            self.reports = {}
            for line in file.read_text().splitlines():
                data = json.loads(line)
                self.reports.setdefault(data["nodeid"], []).append(data)

    def _said(self, file: Path, cache: str) -> str:
        """Runs them. What there is to say of a test that has no report."""
        try:
            command = [*dryrun(self.config.getini("spillway_gpu_memory")), *self._pytest(cache)]
            done = subprocess.run(
                command, cwd=self.config.invocation_params.dir, env=environment(file), capture_output=True, text=True
            )
        except (SpillwayError, OSError) as problem:
            return f"there is no GPU, and the simulated device cannot be used: {problem}"
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        return "\n".join(["it did not end on the simulated device:", *lines[-MOST_LINES:]])

    def _pytest(self, cache: str) -> list[str]:
        """These tests with the same configuration, whatever its own words choose of them."""
        option = self.config.option
        words = [sys.executable, "-m", "pytest", "-q", "-k", "", "-m", "", "--maxfail=0", "-o", f"cache_dir={cache}"]
        words += [f"--rootdir={self.config.rootpath}", f"--import-mode={option.importmode}"]
        words += [f"-c{self.config.inipath}"] if self.config.inipath else []
        words += ["--noconftest"] if option.noconftest else []
        words += ["-n0"] if self.config.pluginmanager.hasplugin("xdist") else []
        for name in option.plugins or []:
            words += ["-p", name]
        for setting in option.override_ini or []:
            words += ["-o", setting]
        return words + [f"{item.path}::{item.nodeid.partition('::')[2]}" for item in self.items]


def report_of(item: pytest.Item, outcome: Any, longrepr: Any) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, longrepr, "call")


def dryrun(memory: str) -> list[str]:
    return [str(command_path()), "dryrun", "--gpu-memory", memory, "--"]


def environment(file: Path) -> dict[str, str]:
    """The child finds the package where this one is, even from a checkout, and is no worker of xdist."""
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    added = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), REPORTS: str(file), "SPILLWAY_PYTHON": sys.executable}
    left = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_XDIST_", "CUDA_VISIBLE_"))
    }
    return {**left, **added}
