"""The marker limit_device_memory of pytest: what it fails, what it says, and where there is no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import warm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "integrations"
TESTS = """
import pytest
import torch

MIB = 1 << 20

def hold(size):
    return torch.zeros(size, dtype=torch.uint8, device="cuda")

@pytest.fixture
def model():
    return hold(4 * MIB)

@pytest.mark.limit_device_memory("2MiB")
def test_fits(model):
    held = [hold(MIB), hold(MIB)]
    del held
    hold(2 * MIB)

@pytest.mark.limit_device_memory("2MiB")
def test_above(model):
    held = [hold(MIB) for _ in range(2)]
    one = hold(1)
    del held, one
    hold(100)

@pytest.mark.limit_device_memory(1000)
@pytest.mark.parametrize("size", [1000, 1001])
def test_sizes(size):
    hold(size)

@pytest.mark.limit_device_memory("1kB")
def test_decimal():
    hold(1001)

@pytest.mark.limit_device_memory("1GiB")
def test_wrong():
    assert hold(1).numel() == 2

@pytest.mark.xfail(strict=True)
@pytest.mark.limit_device_memory("1KiB")
def test_known():
    hold(1025)

@pytest.mark.limit_device_memory("1KiB")
def test_skipped():
    pytest.skip("not today")

@pytest.mark.limit_device_memory("1KiB")
class TestClass:
    def test_inherits(self):
        hold(1024)

    @pytest.mark.limit_device_memory("2KiB")
    def test_overrides(self):
        hold(2048)

def test_without():
    hold(MIB)
"""
MIXED = """
import pytest

torn_down = []

class TestFirst:
    @pytest.fixture(scope="class")
    def thing(self):
        yield 1
        torn_down.append("thing")

    def test_before(self, thing):
        assert thing == 1

    @pytest.mark.limit_device_memory("1GiB")
    def test_marked(self, thing):
        assert thing == 1

class TestSecond:
    def test_after(self):
        assert torn_down == ["thing"]
"""
PRODUCTS = """
import pytest
import torch

@pytest.mark.limit_device_memory("1GiB")
@pytest.mark.parametrize("turn", range(2))
def test_product(turn):
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    (weight @ weight).sum().backward()
"""
OUTCOMES = {
    "test_fits": "passed",
    "test_above": "failure",
    "test_sizes[1000]": "passed",
    "test_sizes[1001]": "failure",
    "test_decimal": "failure",
    "test_wrong": "failure",
    "test_known": "skipped",
    "test_skipped": "skipped",
    "test_inherits": "passed",
    "test_overrides": "passed",
    "test_without": "passed",
}


class Session:
    """One of pytest's."""

    def __init__(self, text: str, *words: str, python: str = "", **environment: str | None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "test_it.py").write_text(text)
            (Path(folder) / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
            given = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
            command = [python or warm.python("torch", "pytest"), "-m", "pytest", "-p", "pytest_spillway"]
            command += ["-p", "no:cacheprovider", "--junitxml", "report.xml", *words]
            done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)
            self.code, self.text = done.returncode, done.stdout + done.stderr
            report = Path(folder) / "report.xml"
            cases = xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else []
            self.cases = {case.attrib["name"]: case for case in cases}

    @property
    def outcomes(self) -> dict[str, str]:
        kinds = ("failure", "error", "skipped")
        return {
            name: next((kind for kind in kinds if case.find(kind) is not None), "passed")
            for name, case in self.cases.items()
        }

    def peak(self, name: str) -> int:
        found = self.cases[name].find("properties/property[@name='device_memory_peak_bytes']")
        assert found is not None, self.text
        return int(found.attrib["value"])


class Marker(unittest.TestCase):
    def judged(self, session: Session) -> None:
        self.assertEqual(session.outcomes, OUTCOMES, session.text)
        self.assertEqual(session.code, 1)
        self.assertEqual(session.peak("test_fits"), 2 << 20)
        self.assertEqual(session.peak("test_above"), (2 << 20) + 1)
        failure = session.cases["test_above"].find("failure")
        assert failure is not None and failure.text is not None
        said = failure.text.splitlines()
        self.assertIn("had 2.000 MiB of device memory at its peak on cuda:0, and its limit is 2.000 MiB", said[0])
        self.assertIn("(2097153 of 2097152 bytes)", said[0])
        self.assertRegex(said[2], r"2\.000 MiB  test_it\.py:8 in hold \(3 blocks\)")
        self.assertEqual(len(said), 3, failure.text)

    def test_on_a_device(self) -> None:
        self.judged(Session(TESTS))

    def test_without_a_gpu_on_the_dry_run(self) -> None:
        session = Session(TESTS, "-k", "not without", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(session.code, 1, session.text)
        session.outcomes["test_without"] = "passed"
        session.cases["test_without"] = session.cases["test_fits"]
        self.judged(session)

    def test_without_a_gpu_between_other_tests(self) -> None:
        given: dict[str, Any] = {"CUDA_VISIBLE_DEVICES": ""}
        session = Session(MIXED, "-o", "addopts=-m 'not limit_device_memory' -x", "-m", "", **given)
        self.assertEqual(session.code, 0, session.text)
        self.assertEqual(session.outcomes, dict.fromkeys(("test_before", "test_marked", "test_after"), "passed"))
        self.assertEqual(session.peak("test_marked"), 0)

    def test_a_dry_run_that_cannot_be(self) -> None:
        wrong: dict[str, Any] = {"SPILLWAY_COMMAND": "/no_such_command"}
        for words, environment, outcome, said in (
            (
                (),
                wrong,
                "failure",
                "there is no GPU, and the simulated device cannot",
            ),
            (("-o", "spillway_gpu_memory=much"), {}, "failure", "much"),
            (("--no-device-dryrun", "-rs"), {}, "skipped", "there is no GPU"),
        ):
            with self.subTest(said):
                session = Session(TESTS, "-k", "fits", *words, CUDA_VISIBLE_DEVICES="", **environment)
                self.assertEqual(session.outcomes, {"test_fits": outcome}, session.text)
                self.assertIn(said, session.text)

    def test_a_test_that_ends_the_dry_run_has_failed(self) -> None:
        text = (
            "import os, pytest\n@pytest.mark.limit_device_memory('1GiB')\ndef test_ends():\n    os._exit(3)\n"
            "@pytest.mark.limit_device_memory('1GiB')\ndef test_after(): pass\n"
        )
        session = Session(text, CUDA_VISIBLE_DEVICES="")
        self.assertEqual(session.outcomes, {"test_ends": "failure", "test_after": "failure"}, session.text)
        self.assertIn("it did not end on the simulated device", session.text)

    def test_each_test_pays_for_its_own_workspaces(self) -> None:
        session = Session(PRODUCTS)
        self.assertEqual(session.code, 0, session.text)
        self.assertEqual(session.peak("test_product[0]"), session.peak("test_product[1]"))

    def test_wrong_arguments_end_the_session_in_one_line(self) -> None:
        for argument, said in (
            ("'2 gigs'", "'2 gigs' is no size; allowed: such as '2GiB'"),
            ("-1", "-1 is no size"),
            ("", "it takes one size"),
            ("1, 2", "it takes one size"),
            ("limit=1", "it takes one size"),
        ):
            with self.subTest(argument):
                text = f"import pytest\n@pytest.mark.limit_device_memory({argument})\ndef test_it(): pass\n"
                session = Session(text)
                self.assertEqual(session.code, 4, session.text)
                lines = [line for line in session.text.splitlines() if line.startswith("ERROR")]
                self.assertEqual(len(lines), 1, session.text)
                self.assertTrue(re.search(re.escape(said), lines[0]), lines)

    def test_a_history_that_the_program_records_goes_on(self) -> None:
        text = (
            "import pytest, torch\n"
            "@pytest.mark.limit_device_memory(100)\n"
            "def test_it():\n    held = torch.zeros(1000, device='cuda')\n"
            "def test_after():\n    assert torch._C._cuda_isHistoryEnabled()\n"
        )
        session = Session(
            "import torch; torch.cuda.memory._record_memory_history(); torch.zeros(9, device='cuda')\n" + text
        )
        self.assertEqual(session.outcomes, {"test_it": "failure", "test_after": "passed"}, session.text)
        self.assertIn("3.906 KiB  test_it.py:5 in test_it\n", session.text)

    def test_a_session_without_the_marker_imports_nothing(self) -> None:
        text = (
            "import sys\n"
            "def test_it():\n    assert 'pytest_spillway' in sys.modules\n"
            "    assert 'torch' not in sys.modules and 'spillway' not in sys.modules\n"
        )
        session = Session(text, python=sys.executable)
        self.assertEqual(session.code, 0, session.text)

    def test_the_example(self) -> None:
        session = Session((EXAMPLES / "test_memory_limit.py").read_text())
        self.assertEqual(session.outcomes, {"test_the_result_is_written_in_place": "passed"}, session.text)
        self.assertEqual(session.peak("test_the_result_is_written_in_place"), 4 << 20)


if __name__ == "__main__":
    unittest.main()
