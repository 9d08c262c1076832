"""The printer of docs/benchmarks.md: what it prints is what the programs answer, and what fails leaves the old page.

usage: print_benchmarks_test.py PRINT_BENCHMARKS SPILLWAY_BUILD
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

PRINTER, BUILD = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
SPILLWAY = BUILD / "bin" / "spillway"
MAKE_TRACES = PRINTER.parent / "synthetic" / "make_traces.py"
sys.path.insert(0, str(PRINTER.parent))
import print_benchmarks  # noqa: E402

# Answers every option with rows for the traces named, from the JSON beside it.
FAKE_SPILLWAY = """\
#!{python} -IS
import json, os, sys
with open(os.path.join(os.path.dirname(__file__), "answer.json")) as file:
    answer = json.load(file)
options = " ".join(sys.argv[1:])
if answer["fails_on"] and answer["fails_on"] in options:
    print("first line", file=sys.stderr)
    sys.exit("spillway replay: the device is on fire")
if "--compare" in sys.argv:
    allocators = ["spillway", "native", "expandable"]
elif "--allocator" in sys.argv:
    allocators = [sys.argv[sys.argv.index("--allocator") + 1]]
else:
    allocators = ["spillway"]
rows = []
for trace in (word for word in sys.argv[1:] if ".pickle" in word):
    for allocator in allocators:
        rows.append({{**answer["row"], **answer["rows"][allocator], "trace": trace, "allocator": allocator}})
print(json.dumps(rows))
"""
FAKE_BENCH = """\
#!/bin/sh
echo "case threads spillway native ratio"
case "$*" in
  *pair/*) echo "pair/64KiB 1 20.0 100.0 0.200" ;;
  *) echo "threads/mixed 1 20.0 40.0 0.5"; echo "threads/mixed 2 80.0 20.0 4.0" ;;
esac
"""
FAKE_UNREPEATED = """\
#!/bin/sh
echo "program                    ns a call, by quarter           driver calls, by quarter        waits reserved"
echo "serving    spillway        50      40      30      20       17        4        3        0      2   1.1047"
echo "serving    expandable     100      80      40      50        5        0        0        0      0   1.1265"
echo "serving    ratio         0.50    0.50    0.75    0.40"
echo "drift      spillway       120      40      30      20       17        4        3        0      0   1.3000"
echo "drift      expandable     100      80      40      50        5        0        0        0      0   1.1000"
echo "drift      ratio         1.20    0.50    0.75    0.40"
"""
FAKE_MAKE_TRACES = """\
import sys
if "--list" in sys.argv:
    print("first 1 steps\\nsecond 1 steps\\ndrifting_sizes 1 steps")
"""
FAKE_SMALLEST = """\
print('[{"example": "first.py", "requested_bytes": 1073741824, "full": 1075838976, "native": 2147483648,'
      ' "expandable": 1181116006}, {"example": "second.py", "requested_bytes": 1073741824, "full": 1181116006,'
      ' "native": 1075838976, "expandable": 1181116006}]')
"""
FAKE_SPEED = """\
print('[{"calls": "raw_alloc and raw_delete", "size": "512 B", "native_ns": 100.0, "full_ns": 30.0,'
      ' "native_instructions": 900.4, "full_instructions": 300.0},'
      ' {"calls": "torch.empty and its end", "size": "1 MiB", "native_ns": 1000.0, "full_ns": 950.0}]')
"""
FAKE_NEVER_REPEATING = """\
print('[{"program": "serving", "allocator": "native", "call_ns": [100, 100, 100, 100], "reserved_times_peak": 1.3},'
      ' {"program": "serving", "allocator": "expandable", "call_ns": [200, 50, 50, 50], "reserved_times_peak": 1.05},'
      ' {"program": "serving", "allocator": "full", "call_ns": [150, 80, 70, 60], "reserved_times_peak": 1.11}]')
"""
ROW: dict[str, Any] = {
    "completion": "instant", "events": 1000, "peak_live_bytes": 4 << 30, "capacity_bytes": 4 << 30,
    "peak_reserved_bytes": 4 << 30, "unlimited_peak_reserved_bytes": 5 << 30, "unlimited_driver_calls": 300,
    "unlimited_steady_driver_calls_per_repeat": 0, "driver_calls": 30, "driver_calls_by_kind": {"map": 17},
    "steady_driver_calls_per_repeat": 0, "host_waits": 0, "steady_host_waits_per_repeat": 0, "stream_waits": 120,
    "steady_stream_waits_per_repeat": 0, "virtual_driver_ns": 40_000_000, "peak_mappings": 70_000,
    "metadata_bytes": 4 << 20, "ns_per_event": 50.0, "ooms": 0,
    "min_capacity_ratio": 1.001, "stall_free_capacity_ratio": 1.002,
}  # fmt: skip
PEER = {"unlimited_driver_calls": 100, "ns_per_event": 200.0, "min_capacity_ratio": 1.1}
NATIVE = {**PEER, "stall_free_capacity_ratio": 1.3}
EXPANDABLE = {**PEER, "stall_free_capacity_ratio": 1.2}


def program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False)


class Fakes(unittest.TestCase):
    """The programs are scripts, so that the whole page takes a moment and every figure on it is known."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.page = self.folder / "page.md"
        for name in ("build/bin", "shared/snapshots", "shared/traces"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "shared/traces/recorded.pickle.gz").touch()
        program(self.folder / "build/bin/spillway", FAKE_SPILLWAY.format(python=sys.executable))
        program(self.folder / "build/bin/bench_allocator", FAKE_BENCH)
        program(self.folder / "build/bin/bench_unrepeated", FAKE_UNREPEATED)
        program(self.folder / "make_traces.py", FAKE_MAKE_TRACES)
        program(self.folder / "smallest_devices.py", FAKE_SMALLEST)
        program(self.folder / "speed.py", FAKE_SPEED)
        program(self.folder / "unrepeated.py", FAKE_NEVER_REPEATING)

    def answer(self, fails_on: str = "", **ours: object) -> None:
        rows = {"spillway": ours, "native": NATIVE, "expandable": EXPANDABLE}
        answer = {"fails_on": fails_on, "row": ROW, "rows": rows}
        (self.folder / "build/bin/answer.json").write_text(json.dumps(answer))

    def main(self, *arguments: str) -> str:
        places = [f"--build={self.folder / 'build'}", f"--shared={self.folder / 'shared'}"]
        stdout = io.StringIO()
        with (
            mock.patch("page.commands.MAKE_TRACES", self.folder / "make_traces.py"),
            mock.patch("page.commands.PYTORCH", self.folder),
            mock.patch("page.commands.PYTHON", sys.executable),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(stdout),
        ):
            print_benchmarks.main([*places, *arguments])
        return stdout.getvalue()

    def complaint(self) -> str:
        with self.assertRaises(SystemExit) as raised:
            self.main(f"--output={self.page}")
        return str(raised.exception.code)

    def test_the_whole_page_holds_the_figures_of_the_programs(self) -> None:
        self.answer()
        self.assertEqual(self.main(f"--output={self.page}"), "")
        text = self.page.read_text()
        for line in (
            "| recorded | 4.000 GiB | spillway | 1.0020 | 1.0010 | 1.2500 | 0 | 300 | 0 | 0.25 |",
            "|  |  | native | 1.3000 | 1.1000 | 1.2500 | 0 | 100 | 0 | 1.00 |",
            "Not good: the first pass makes 3 times the driver calls of native.",
            "| recorded | 0 / 0 / 0 | 0 / 0 / 0 | 0 / 0 / 0 | 0 / 0 / 0 |",
            "In 4 of the 4 loops",
            "| second | 4.000 GiB | spillway |",
            "| spillway | 12.0 | 0.0 | 3.0 |",
            "| live mappings | 70000 |",
            "| kv_serving | 3000 | 1000 | 4.000 GiB | 0 | 17 | 70000 |",
            "| recorded | 0.50 to 0.50 | 0.50 to 0.50 |",
            "0.098 % of what",
            "| spillway / native | 0.20 |",
            "| mixed | 2 | 4.00 | 0.25 | 2.00 |",
            "threads/mixed on 2 threads takes 4.0 times the time of native",
            "| serving | over native | 0.50 0.50 0.75 0.40 | 17 4 3 0 | 2 | 1.105 | 1.127 |",
            "Not good: drift, over expandable segments: 1.20 of the peer's time in one quarter; drift, over expandable",
            "| `first.py` | 1.000 GiB | 1.002 GiB (1.0020) | 2.000 GiB (2.0000) | 1.100 GiB (1.1000) |",
            "Not good: a peer needs less for second.py.",
            "| raw_alloc and raw_delete | 512 B | 0.30 | 0.6 | 300 | 900 |",
            "Not good: torch.empty and its end, 1 MiB miss the bar.",
            "| serving | 1.50 0.80 0.70 0.60 | 0.75 1.60 1.40 1.20 | 1.110 | 1.300 | 1.050 |",
            "Not good: more than native's time in a quarter: serving (1.50).",
            "Not good: more reserved than with expandable segments: serving.",
        ):
            self.assertIn(line, text)
        self.assertEqual(text.count("Not good"), 8, text)
        self.assertLessEqual(max(len(line) for line in text.splitlines() if line[:1] not in "| #"), 120)

    def test_what_is_not_good_is_said(self) -> None:
        self.answer(
            stall_free_capacity_ratio=1.25,
            min_capacity_ratio=None,
            ns_per_event=500.0,
            host_waits=7,
            unlimited_steady_driver_calls_per_repeat=2,
            steady_driver_calls_per_repeat=5,
            steady_host_waits_per_repeat=4,
        )
        text = " ".join(self.main("--only", "capacity", "loops", "drifting", "long").split())
        for line in (
            "recorded needs 1.2500 without a stall, expandable 1.2000; recorded needs none at least, native 1.1000; "
            "recorded takes 2.50 times the time of native; recorded makes 2 driver calls in the tenth pass;",
            "In 0 of the 4 loops",
            "Not good: recorded at 100 % instant: 5 / 4 / 0;",
            "Not good: it waits at 100 %",
            "Not good: host waits in moe_random: 7; host waits in kv_serving: 7.",
        ):
            self.assertIn(line, text)

    def test_out_of_memory_is_no_figure(self) -> None:
        self.answer(ooms=1)
        text = self.main("--only", "loops", "long")
        self.assertIn("| recorded | out of memory | out of memory | out of memory | out of memory |", text)
        self.assertIn("| kv_serving | 3000 | 1000 | 4.000 GiB | out of memory |", text)

    def test_a_command_that_fails_is_named_and_the_old_page_stays(self) -> None:
        self.page.write_text("old")
        self.answer(fails_on="--capacity 101%")
        complaint = self.complaint()
        self.assertIn("--capacity 101%", complaint)
        self.assertTrue(complaint.endswith("exit code 1: spillway replay: the device is on fire"), complaint)
        self.assertEqual(len(complaint.splitlines()), 1)
        with mock.patch.dict(ROW):
            del ROW["steady_stream_waits_per_repeat"]
            self.answer()
        self.assertIn("no 'steady_stream_waits_per_repeat' in what the programs", self.complaint())
        spillway = self.folder / "build/bin/spillway"
        program(spillway, "#!/bin/sh\necho nonsense\n")
        self.assertIn("no answer of the form expected", self.complaint())
        spillway.unlink()
        self.assertIn("recorded.pickle.gz: No such file", self.complaint())
        (self.folder / "shared/traces/recorded.pickle.gz").unlink()
        self.assertIn("no trace in", self.complaint())
        self.assertEqual(self.page.read_text(), "old")
        self.assertEqual([file.name for file in self.folder.glob(".*")], [])


class RealPrograms(unittest.TestCase):
    def test_a_section_shows_what_the_command_answers(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            made = call(MAKE_TRACES, "--kind=small_churn", "--iterations=1", f"--output={scratch}/traces")
            self.assertEqual(made.returncode, 0, made.stderr)
            options = [f"--build={BUILD}", f"--shared={scratch}"]
            done = call(PRINTER, *options, "--only", "loops", "driver-time")
            self.assertEqual(done.returncode, 0, done.stderr)
            trace = f"{scratch}/traces/small_churn.pickle.gz"
            replayed = subprocess.run(
                [SPILLWAY, "replay", "--json", trace], capture_output=True, text=True, check=True
            ).stdout
        row = json.loads(replayed)[0]
        seconds = row["virtual_driver_ns"] / 1e9 / (row["peak_live_bytes"] / (50 << 30))
        self.assertRegex(done.stdout, rf"\n\| small_churn \| {seconds:.2f} to [0-9.]+ \| [0-9.]+ to [0-9.]+ \|\n")
        self.assertEqual(done.stdout.count("\n## "), 1, "a heading at the start, and one other")
        self.assertRegex(done.stdout, r"\n\| small_churn( \| [^|]+){4} \|\n")
        self.assertIn("[2/2] driver-time", done.stderr)

    def test_bad_input_is_refused_in_one_line(self) -> None:
        for text, *arguments in (
            ("invalid choice: 'banana'", "--only", "banana"),
            ("choose one", "--only", "loops", "--output", "/nowhere/page.md"),
            ("unrecognized arguments: --banana", "--banana"),
            ("no file can be written there", "--output", "/nowhere/page.md"),
            ("no file can be written there", "--output", "/tmp"),
            ("no trace in", "--only", "loops", "--shared", "/nowhere"),
        ):
            done = call(PRINTER, *arguments)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stdout, "")
            self.assertIn(text, done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
