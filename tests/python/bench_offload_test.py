"""Those programs of bench/pytorch that take longest: they move memory, or count a whole model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["SPILLWAY_LIBRARY"]).resolve().parents[1]


class TransformersMemory(unittest.TestCase):
    def test_the_simulated_device_counts_what_an_h100_counted(self) -> None:
        """Of models that the releases of transformers since have not changed; docs/dryrun-accuracy.md."""
        program = ROOT / "bench" / "pytorch" / "transformers_memory.py"
        lines = program.with_name("transformers_memory_h100.jsonl").read_text().splitlines()
        measured = {each["run"]: each for each in map(json.loads, lines)}
        for name in ("llama_bf16_fused", "gpt_neox_bf16"):
            words = [sys.executable, str(program), f"--build={BUILD}", "--simulated", "--run", name]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout)
            self.assertEqual(found["parameters"], measured[name]["parameters"])
            for here, there in zip(found["steps"], measured[name]["steps"], strict=True):
                for key in ("forward", "backward", "after", "peak"):
                    self.assertAlmostEqual(here[key], there[key], delta=4096, msg=f"{name}: {key}")
                self.assertAlmostEqual(here["reserved"], there["reserved"], delta=4 << 20, msg=name)


class ParameterOffload(unittest.TestCase):
    def test_each_that_moves_lowers_the_peak(self) -> None:
        script = ROOT / "bench" / "pytorch" / "parameter_offload.py"
        words = [sys.executable, str(script), f"--build={BUILD}", "--layers", "6", "--width", "512", "--passes", "2"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        nothing, some, some_and_gradients, all_moved, all_and_gradients = (
            row["later_pass_peak_bytes"] for row in json.loads(done.stdout)
        )
        self.assertGreater(nothing, some)
        self.assertGreater(some, some_and_gradients)
        self.assertGreater(some, all_moved)
        self.assertGreater(all_moved, all_and_gradients)


class ActivationOffload(unittest.TestCase):
    def run_bench(self, *words: str) -> subprocess.CompletedProcess[str]:
        script = ROOT / "bench" / "pytorch" / "activation_offload.py"
        command = [sys.executable, str(script), f"--build={BUILD}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_where_the_link_lacks_it_waits_no_longer_than_it_may(self) -> None:
        done = self.run_bench("--width", "1024", "--tokens", "1024", "--layers", "8", "--link", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        ours = {row["strategy"]: row for row in json.loads(done.stdout)}["spillway"]
        self.assertEqual(ours["late"], 0)
        self.assertGreater(ours["wait_ns"], 0)
        self.assertLessEqual(ours["step_ns_ratio"], 1.03)


if __name__ == "__main__":
    unittest.main()
