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
QUICK = ("--repeats", "2", "--copy-mib", "1", "--trim-mib", "64", "--mapped-gib", "1")
LIMIT = ("--max-mappings", "100")

SECTIONS = {
    *("costs_ns", "behind_work", "ranges", "aliasing", "aliasing_resident", "answers", "copies", "unmap_runs"),
    *(
        "beside_graphs",
        "host_memory",
        "captured_streams",
        "destroyed_streams",
        "reset_context",
        "green_contexts",
        "remap_to_host",
        "trim",
        "page_tables",
    ),
}


def probe(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fault ends its process by the signal, also in a build for a sanitizer, which would take it for its own."""
    values = {**os.environ, **environment}
    for name in ("ASAN_OPTIONS", "TSAN_OPTIONS"):
        values[name] = f"{os.environ.get(name, '')}:handle_segv=0".strip(":")
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, env=values, check=False)


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
        done = probe(*QUICK, *LIMIT, "--output", str(cls.file))
        assert done.returncode == 0, done.stderr
        cls.report = json.loads(cls.file.read_text())

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def test_no_section_failed(self) -> None:
        self.assertEqual(errors(self.report), [])

    def test_every_section_is_there(self) -> None:
        self.assertLessEqual(SECTIONS | {"mapping_limit"}, self.report.keys())
        self.assertTrue(self.report["complete"])

    def test_it_says_that_it_is_simulated_and_what_says_nothing_there(self) -> None:
        self.assertTrue(self.report["simulated"])
        for section in ("behind_work", "aliasing_resident"):
            silent = set(self.report[section]["says_nothing"])
            self.assertLessEqual(silent, self.report[section].keys())
        self.assertIn("wrong_words_controls", self.report["aliasing_resident"]["says_nothing"])

    def test_the_driver_without_controls_is_simulated_too(self) -> None:
        driver = Path(os.environ["SPILLWAY_LIBCUDA"]).parents[1] / "uncontrolled" / "libcuda.so.1"
        if not driver.exists():
            self.skipTest("it is not built here")
        report = json.loads(probe("--sections", "answers", SPILLWAY_LIBCUDA=str(driver)).stdout)
        self.assertTrue(report["simulated"])

    def test_where_no_kernel_runs_the_checks_of_resident_readers_fail(self) -> None:
        self.assertGreater(self.report["aliasing_resident"]["wrong_words_controls"], 0)
        self.assertFalse(self.report["aliasing_resident"]["checks_can_fail"])

    def test_a_full_device_is_filled_to_its_last_page(self) -> None:
        full = self.report["page_tables"]["when_full"]
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", full["create_answers"])
        self.assertGreater(full["held_bytes"], 0)

    def test_a_captured_stream_tells_its_context_and_not_its_number(self) -> None:
        answers = self.report["captured_streams"]
        self.assertIn("CAPTURE_UNSUPPORTED", answers["cuStreamGetId"]["answers"])
        self.assertFalse(answers["cuStreamGetId"]["capture_survives"])
        self.assertEqual(answers["cuStreamGetCtx"], {"answers": "works", "capture_survives": True})
        self.assertEqual(answers["cuStreamIsCapturing"], {"answers": "works", "capture_survives": True})

    def test_streams_that_are_gone_end_who_asks(self) -> None:
        answers = self.report["destroyed_streams"]
        self.assertEqual(answers["cuStreamQuery"], {"crashed": "Segmentation fault"})
        self.assertTrue(answers["handle_of_the_next"]["next_has_another_id"])

    def test_a_reset_context_stays_current_and_its_events_end_who_asks(self) -> None:
        answers = self.report["reset_context"]
        self.assertEqual(answers["state"], {"active": False, "stays_current": True})
        self.assertIn("CONTEXT_IS_DESTROYED", answers["cuStreamIsCapturing"]["answers"])
        self.assertEqual(answers["cuEventQuery"], {"crashed": "Segmentation fault"})
        self.assertTrue(answers["next_use"]["active"])

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
        done = probe("--sections", "answers", SPILLWAY_SIM=f"costs:{self.file}")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_search_stops_at_the_limit(self) -> None:
        limit = json.loads(probe("--sections", "mapping_limit", *LIMIT, SPILLWAY_SIM="mappings:40").stdout)[
            "mapping_limit"
        ]
        self.assertEqual(limit["live_mappings"], 40)
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", limit["stopped_by"])

    def test_a_device_without_virtual_memory_is_described(self) -> None:
        report = json.loads(probe(*QUICK, SPILLWAY_SIM="vmm:off").stdout)
        self.assertNotIn("cuMemCreate", report["costs_ns"])
        self.assertIn("cuMemAlloc", report["costs_ns"])
        self.assertIn("error", report["aliasing"])


class Sections(unittest.TestCase):
    def test_only_those_that_are_asked_for(self) -> None:
        report = json.loads(probe("--sections", "copies,answers", "--copy-mib", "1").stdout)
        self.assertEqual(SECTIONS & report.keys(), {"copies", "answers"})

    def test_the_search_for_the_limit_of_mappings_is_off_unless_told(self) -> None:
        self.assertNotIn("mapping_limit", json.loads(probe(*QUICK).stdout))
        report = json.loads(probe("--sections", "mapping_limit", SPILLWAY_SIM="mappings:40").stdout)
        self.assertEqual(report["mapping_limit"]["live_mappings"], 40)

    def test_a_crash_is_a_result_and_the_others_go_on(self) -> None:
        done = probe("--sections", "host_memory,copies", "--copy-mib", "1", SPILLWAY_SIM="host_numa:fault")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["host_memory"]["numa_node"], {"crashed": "Segmentation fault"})
        self.assertEqual(report["host_memory"]["host"]["answers"], "works")
        self.assertIn("host_to_device_gb_per_s", report["copies"])

    def test_the_file_is_whole_after_every_section(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            running = subprocess.Popen([PROGRAM, *QUICK, "--output", str(file)])
            seen: set[int] = set()
            complete: set[bool] = set()
            while running.poll() is None:
                if file.exists():
                    report = json.loads(file.read_text())
                    seen.add(len(SECTIONS & report.keys()))
                    complete.add(report["complete"])
            self.assertEqual(running.returncode, 0)
            self.assertGreater(len(seen), len(SECTIONS) // 2)
            self.assertIn(False, complete)
            self.assertEqual([path.name for path in Path(folder).iterdir()], ["report.json"])


class BadInput(unittest.TestCase):
    def check(self, done: subprocess.CompletedProcess[str], *wanted: str, code: int = 1) -> None:
        self.assertEqual(done.returncode, code)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for text in wanted:
            self.assertIn(text, done.stderr)

    def test_an_unknown_argument_names_what_is_allowed(self) -> None:
        self.check(probe("--fast"), "'--fast'", "--device", "--repeats", "--copy-mib", "--output")

    def test_an_unknown_section_names_what_is_allowed(self) -> None:
        for text in ("copies,shapes", "copies,", "Copies"):
            self.check(probe("--sections", text), "unknown section", *SECTIONS, "mapping_limit", code=2)

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
