"""What Spillway dumps of a PyTorch program, and what PyTorch itself dumps of it, in PyTorch's own reader."""

from __future__ import annotations

import importlib
import json
import pickle
import tempfile
import unittest
from pathlib import Path
from typing import Any

import warm

VIEWER: Any = importlib.import_module("torch.cuda._memory_viz")
PROGRAM = """
import json, os, shutil, signal, sys, time, torch
import spillway
spillway.install()
torch.cuda.memory._record_memory_history()
model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(4)]).cuda()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    kept = torch.empty(5_000_001, dtype=torch.uint8, device="cuda")
half = [torch.empty(3_000_000, dtype=torch.uint8, device="cuda") for _ in range(6)]
del half[::2]
if sys.argv[2] == "oom":
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(json.dumps(str(error)))
        sys.exit(0)
torch.cuda.synchronize()
torch.cuda.memory._dump_snapshot(sys.argv[1] + "/torch.pickle")
# At the end of the program its tensors are gone.
os.kill(os.getpid(), signal.SIGUSR2)
written = os.environ["SPILLWAY_STATS"]
while not os.path.exists(written):
    time.sleep(0.01)
shutil.copy(written, sys.argv[1] + "/spillway.pickle")
stats = torch.cuda.memory_stats()
names = ("reserved", "allocated", "active", "requested")
print(json.dumps({name: stats[name + "_bytes.all.current"] for name in names}))
"""


class Dumps(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def run_program(self, stats: str, what: str = "all") -> Any:
        done = warm.run(PROGRAM, str(self.folder), what, SPILLWAY_STATS=str(self.folder / stats))
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_snapshots_are_read_and_add_up(self) -> None:
        counters = self.run_program("stats.pickle")
        for name in ("spillway.pickle", "torch.pickle"):
            with self.subTest(name):
                snapshot = pickle.loads((self.folder / name).read_bytes())
                segments = snapshot["segments"]
                for total, key in (
                    ("reserved", "total_size"),
                    ("allocated", "allocated_size"),
                    ("active", "active_size"),
                ):
                    self.assertEqual(sum(segment[key] for segment in segments), counters[total], total)
                self.assertEqual(sum(segment["requested_size"] for segment in segments), counters["requested"])
                report = VIEWER.segsum(snapshot)
                self.assertIn(f"total_reserved: {VIEWER.Bytes(counters['reserved'])}\n", report)
                for page in (VIEWER.trace_plot(snapshot), VIEWER.segment_plot(snapshot)):
                    self.assertIn("<script", page)

    def test_an_error_is_dumped_and_says_what_matters(self) -> None:
        text = self.run_program("run.json", "oom")
        self.assertTrue(text.startswith("CUDA out of memory. Tried to allocate 1024.00 GiB"), text)
        for line in ("next: ", "device ", "reserved ", "active ", "free within reserved ", "tried for this request:"):
            self.assertIn("\n  " + line, text)
        dump = json.loads((self.folder / "run.oom.json").read_text())
        self.assertEqual(dump["reason"], "oom")
        self.assertEqual(dump["devices"][0]["climbs"][-1]["outcome"], "out_of_memory")


if __name__ == "__main__":
    unittest.main()
