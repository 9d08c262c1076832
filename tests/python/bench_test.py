"""The programs of bench/pytorch: the size that is found is the smallest, both allocators' times are printed, and a pair
of calls has the instructions that it may have."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "bench" / "pytorch"))
import speed  # noqa: E402
from smallest_devices import ALLOCATORS, PAGE_BYTES, Search  # noqa: E402

importlib.import_module("torch")  # once for all children
BUILD = Path(os.environ["SPILLWAY_LIBRARY"]).resolve().parents[1]


class SmallestDevices(unittest.TestCase):
    def test_a_page_less_is_too_small(self) -> None:
        search = Search("generate.py", "--width 256 --layers 2 --batch 4 --length 256 --tokens 4 --steps 1")
        for allocator in ALLOCATORS:
            smallest = search.smallest(allocator)
            self.assertGreaterEqual(smallest, search.requested_bytes)
            self.assertTrue(search.completes(allocator, smallest), allocator)
            if smallest - PAGE_BYTES >= search.requested_bytes:
                self.assertFalse(search.completes(allocator, smallest - PAGE_BYTES), allocator)

    def test_bad_input(self) -> None:
        words = [sys.executable, str(ROOT / "bench" / "pytorch" / "smallest_devices.py"), f"--build={BUILD}"]
        done = subprocess.run([*words, "--example", "x.py"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no example 'x.py'; allowed: train_transformer.py", done.stderr.splitlines()[-1])


class Speed(unittest.TestCase):
    def test_every_measure_has_both_times(self) -> None:
        words = [sys.executable, str(ROOT / "bench" / "pytorch" / "speed.py"), f"--build={BUILD}", "--repeats", "1"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)
        self.assertEqual(len(rows), 8)
        for row in rows:
            self.assertTrue(row["native_ns"] > 0 and row["full_ns"] > 0, row)

    @unittest.skipIf(shutil.which("valgrind") is None, "no valgrind")
    def test_instructions_of_a_pair(self) -> None:
        """Times depend on what else runs, these do not. The share is that of docs/benchmarks.md."""
        native, full = speed.instructions(BUILD)
        self.assertGreater(full, 0)
        self.assertLessEqual(full, 0.6 * native)


class NeverRepeating(unittest.TestCase):
    words = (sys.executable, str(ROOT / "bench" / "pytorch" / "unrepeated.py"), f"--build={BUILD}")

    def test_every_allocator_has_four_quarters(self) -> None:
        done = subprocess.run(
            [*self.words, "--calls", "3200", "--program", "replace", "--seed", "2"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)
        self.assertEqual([row["allocator"] for row in rows], ["native", "expandable", "full"])
        for row in rows:
            self.assertEqual(len(row["call_ns"]), 4)
            self.assertGreater(min(row["call_ns"]), 0)
            self.assertGreaterEqual(row["reserved_times_peak"], 1)

    def test_bad_input(self) -> None:
        for text, *given in (
            ("--calls 31: at least 32", "--calls", "31"),
            ("invalid choice: 'rollouts'", "--program", "rollouts"),
        ):
            done = subprocess.run([*self.words, *given], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr.splitlines()[-1])


class ActivationOffload(unittest.TestCase):
    def run_bench(self, *words: str) -> subprocess.CompletedProcess[str]:
        script = ROOT / "bench" / "pytorch" / "activation_offload.py"
        command = [sys.executable, str(script), f"--build={BUILD}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_spillway_saves_memory_and_no_time(self) -> None:
        # A link that is fast enough for so narrow a model.
        done = self.run_bench("--width", "1024", "--tokens", "1024", "--layers", "8", "--link", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {row["strategy"]: row for row in json.loads(done.stdout)}
        self.assertEqual(list(rows), ["none", "save_on_cpu", "own_stream", "spillway"])
        ours = rows["spillway"]
        self.assertEqual(ours["late"], 0)
        self.assertGreater(ours["hits"], 0)
        self.assertLessEqual(ours["step_ns_ratio"], 1.03)
        self.assertLess(ours["peak_bytes_ratio"], 0.8)
        for peer in ("save_on_cpu", "own_stream"):
            self.assertGreater(rows[peer]["step_ns_ratio"], ours["step_ns_ratio"], peer)

    def test_bad_input(self) -> None:
        done = self.run_bench("--width", "100")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--width 100: a multiple of 128", done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
