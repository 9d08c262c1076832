"""Runs driver_probe on the simulated device: the report is complete, and the simulated device loads it back.

usage: probe_test.py PROGRAM
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

PROGRAM = sys.argv.pop() if len(sys.argv) > 1 else ""
QUICK = ("--repeats", "2", "--copy-mib", "1", "--max-mappings", "100")


def probe(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def errors(node: Any, path: str = "") -> list[str]:
    """Where the report says that something failed."""
    if not isinstance(node, dict):
        return []
    found = [f"{path}: {node['error']}"] if "error" in node else []
    return found + [line for key, value in node.items() for line in errors(value, f"{path}/{key}")]


class Report(unittest.TestCase):
    file: Path
    report: dict[str, Any]
    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.file = Path(cls.folder.name) / "report.json"
        done = probe(*QUICK, "--output", str(cls.file))
        assert done.returncode == 0, done.stderr
        cls.report = json.loads(cls.file.read_text())

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def test_no_section_failed(self) -> None:
        self.assertEqual(errors(self.report), [])

    def test_every_section_is_there(self) -> None:
        measured = {"costs_ns", "behind_work", "ranges", "copies", "mapping_limit"}
        checked = {"aliasing", "answers", "remap_to_host"}
        self.assertLessEqual(measured | checked, self.report.keys())

    def test_views_of_one_handle_agree(self) -> None:
        for name, value in self.report["aliasing"].items():
            if name.startswith("wrong_words"):
                self.assertEqual(value, 0, name)

    def test_bytes_survive_the_move_to_the_host(self) -> None:
        self.assertEqual(self.report["remap_to_host"]["wrong_words_after_swap"], 0)

    def test_memory_is_accounted_for(self) -> None:
        answers = self.report["answers"]
        self.assertEqual(answers["mem_get_info_drop_after_create_bytes"], answers["created_bytes"])

    def test_the_simulated_device_loads_the_costs(self) -> None:
        done = probe(*QUICK, SPILLWAY_SIM=f"costs:{self.file}")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_search_stops_at_the_limit(self) -> None:
        limit = json.loads(probe(*QUICK, SPILLWAY_SIM="mappings:40").stdout)["mapping_limit"]
        self.assertEqual(limit["live_mappings"], 40)
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", limit["stopped_by"])

    def test_a_device_without_virtual_memory_is_described(self) -> None:
        report = json.loads(probe(*QUICK, SPILLWAY_SIM="vmm:off").stdout)
        self.assertNotIn("cuMemCreate", report["costs_ns"])
        self.assertIn("cuMemAlloc", report["costs_ns"])
        self.assertIn("error", report["aliasing"])


class BadInput(unittest.TestCase):
    def check(self, done: subprocess.CompletedProcess[str], *wanted: str) -> None:
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for text in wanted:
            self.assertIn(text, done.stderr)

    def test_an_unknown_argument_names_what_is_allowed(self) -> None:
        self.check(probe("--fast"), "'--fast'", "--device", "--repeats", "--copy-mib", "--output")

    def test_a_number_out_of_range_names_the_range(self) -> None:
        for text in ("0", "100001", "-1", "3x", "", "99999999999999999999"):
            self.check(probe("--repeats", text), f"'{text}'", "1 to 100000")

    def test_an_option_without_its_value(self) -> None:
        self.check(probe("--repeats"), "--repeats needs a value")

    def test_a_device_that_does_not_exist(self) -> None:
        self.check(probe("--device", "9"), "device 9", "allowed: 0 to 0")

    def test_an_output_that_cannot_be_written(self) -> None:
        self.check(probe("--output", "/nonexistent/report.json"), "/nonexistent/report.json")

    def test_no_driver(self) -> None:
        self.check(probe(SPILLWAY_LIBCUDA="/nonexistent/libcuda.so.1"), "/nonexistent/libcuda.so.1")


if __name__ == "__main__":
    unittest.main()
