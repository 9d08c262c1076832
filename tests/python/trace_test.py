"""A PyTorch program that is recorded: its stacks, marks and tags, and its trace as a PyTorch snapshot."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

PROGRAM = """
import threading, torch, spillway
assert spillway.install()

def block(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")

class Model:
    def weights(self):
        return block(3 << 20)

def step():
    kept = block(1000)
    return kept

spillway.mark("load")
with spillway.tag("weights"):
    model = Model().weights()
for number in range(5):
    spillway.mark(f"step {number}")
    held = step()
    threads = [threading.Thread(target=step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
try:
    block(2 * torch.cuda.get_device_properties(0).total_memory + 5)
except torch.OutOfMemoryError:
    pass
del held
"""


def record(folder: Path, stacks: str) -> Path:
    trace = folder / "trace.zst"
    program = folder / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {"SPILLWAY_CONF": f"trace:{trace},trace_stacks:{stacks}"}
    subprocess.run([sys.executable, str(program)], check=True, env=environment, timeout=300)
    return trace


def command(*arguments: str) -> str:
    without = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run([os.environ["SPILLWAY_COMMAND"], *arguments], capture_output=True, text=True, env=without)
    assert done.returncode == 0, done.stderr
    return done.stdout


def converted(trace: Path) -> Any:
    snapshot = trace.with_suffix(".pickle")
    command("convert", str(trace), str(snapshot))
    return pickle.loads(snapshot.read_bytes())


class Recorded(unittest.TestCase):
    def test_python_stacks_marks_and_tags(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            snapshot = converted(record(Path(name), "python"))
        events = [event for trace in snapshot["device_traces"] for event in trace]
        of_steps = [event for event in events if event["action"] == "alloc" and event["size"] == 1000]
        self.assertEqual(len(of_steps), 25)
        for event in of_steps:
            self.assertEqual([frame["name"] for frame in event["frames"][:2]], ["block", "step"])
            self.assertTrue(event["frames"][0]["filename"].endswith("program.py"))
            self.assertEqual(event["frames"][0]["line"], 6)
        weights = [event for event in events if event["user_metadata"] == "weights"]
        self.assertEqual({event["size"] for event in weights if event["action"] == "alloc"}, {3 << 20})
        method = "Model.weights" if sys.version_info >= (3, 11) else "weights"
        self.assertEqual(weights[0]["frames"][1]["name"], method)
        self.assertEqual(sum(event["action"] == "oom" for event in events), 1)
        marks = [mark["name"] for mark in snapshot["external_annotations"]]
        self.assertEqual(marks, ["load", *(f"step {number}" for number in range(5))])

    def test_both_kinds_of_stacks(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            snapshot = converted(record(Path(name), "all"))
        events = [event for trace in snapshot["device_traces"] for event in trace]
        held = next(event for event in events if event["action"] == "alloc" and event["size"] == 1000)
        names = [frame["name"] for frame in held["frames"]]
        self.assertIn("step", names)
        self.assertTrue(any("/libtorch" in frame["filename"] for frame in held["frames"]), held["frames"])

    def test_pytorchs_own_viewer_reads_the_conversion(self) -> None:
        viewer = importlib.import_module("torch.cuda._memory_viz")
        with tempfile.TemporaryDirectory() as name:
            trace = record(Path(name), "python")
            snapshot = converted(trace)
            plot = json.loads(command("plot", str(trace), "--json", "--output", str(Path(name) / "a.png")))
        viewer.trace_plot(snapshot)
        viewer.segment_plot(snapshot)
        live = peak = 0
        for event in snapshot["device_traces"][0]:
            live += {"alloc": event["size"], "free_completed": -event["size"]}.get(event["action"], 0)
            peak = max(peak, live)
        self.assertEqual(live, sum(row["requested_size"] for row in snapshot["segments"]))
        self.assertEqual(peak, plot["peak_live_bytes"])
        self.assertEqual([layer["name"] for layer in plot["layers"]], ["weights", "no tag"])


if __name__ == "__main__":
    unittest.main()
