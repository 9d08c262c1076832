"""The generator of synthetic traces: equal seeds, equal files; traces are well formed and replay; bad input is refused.

usage: synthetic_traces_test.py MAKE_TRACES [SPILLWAY]      (without SPILLWAY nothing is replayed)
"""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

SPILLWAY = sys.argv.pop() if len(sys.argv) > 2 else ""
MAKE_TRACES = sys.argv.pop() if len(sys.argv) > 1 else ""
# A short piece of each kind.
ITERATIONS = {
    "transformer_varlen": 2,
    "moe_random": 1,
    "kv_serving": 8,
    "sharded_two_streams": 2,
    "generation_and_training": 1,
    "drifting_sizes": 4,
    "small_churn": 10,
}
STREAMS = {"sharded_two_streams": 3}


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, MAKE_TRACES, *arguments], capture_output=True, text=True, check=False)


def make_all(folder: Path, seed: int) -> dict[str, Path]:
    for kind, iterations in ITERATIONS.items():
        done = make("--kind", kind, "--iterations", str(iterations), "--seed", str(seed), "--output", str(folder))
        if done.returncode != 0:
            raise AssertionError(done.stderr)
    return {kind: folder / f"{kind}.pickle.gz" for kind in ITERATIONS}


class Traces(unittest.TestCase):
    scratch: tempfile.TemporaryDirectory[str]
    folder: Path
    files: dict[str, Path]

    @classmethod
    def setUpClass(cls) -> None:
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        cls.files = make_all(cls.folder / "one", seed=1)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.scratch.cleanup()

    def test_every_kind_is_here(self) -> None:
        listed = [line.split()[0] for line in make("--list").stdout.splitlines()]
        self.assertEqual(listed, list(ITERATIONS))

    def test_equal_seeds_give_equal_files_and_others_do_not(self) -> None:
        again = make_all(self.folder / "again", seed=1)
        other = make_all(self.folder / "other", seed=2)
        for kind, file in self.files.items():
            with self.subTest(kind):
                self.assertEqual(file.read_bytes(), again[kind].read_bytes())
                self.assertNotEqual(file.read_bytes(), other[kind].read_bytes())
        self.assertEqual(sorted(self.files.values()), sorted((self.folder / "one").iterdir()), "something is left over")

    def test_events_are_well_formed(self) -> None:
        for kind, file in self.files.items():
            with self.subTest(kind):
                snapshot = pickle.loads(gzip.decompress(file.read_bytes()))
                self.check(snapshot, STREAMS.get(kind, 1))

    def check(self, snapshot: dict[str, Any], streams: int) -> None:
        (events,) = snapshot["device_traces"]
        at_end = {row["address"]: row for row in snapshot["segments"]}
        # Backwards from the end: what is live before the first event is known only when all are taken back.
        live = {address: (row["requested_size"], row["stream"]) for address, row in at_end.items()}
        pending = {a for a, row in at_end.items() if row["blocks"][0]["state"] == "active_pending_free"}
        for event in reversed(events):
            address, block = event["addr"], (event["size"], event["stream"])
            self.assertGreater(event["size"], 0)
            if event["action"] == "free_completed":
                self.assertNotIn(address, live)
                live[address] = block
                pending.add(address)
                continue
            self.assertEqual(live[address], block)
            if event["action"] == "free_requested":
                pending.remove(address)
            else:
                self.assertEqual(event["action"], "alloc")
                self.assertNotIn(address, pending)
                del live[address]
        self.assertFalse(pending)
        self.assertEqual(len({event["stream"] for event in events}), streams)
        times = [event["time_us"] for event in events]
        self.assertEqual(times, sorted(times))

    def test_frees_behind_another_stream_complete_in_its_order_and_later(self) -> None:
        snapshot = pickle.loads(gzip.decompress(self.files["sharded_two_streams"].read_bytes()))
        (events,) = snapshot["device_traces"]
        requested: dict[int, list[int]] = {}
        late = 0
        for event, following in zip(events, events[1:], strict=False):
            queue = requested.setdefault(event["stream"], [])
            if event["action"] == "free_requested" and following["addr"] != event["addr"]:
                queue.append(event["addr"])
            elif event["action"] == "free_completed" and event["addr"] in queue:
                self.assertEqual(queue.pop(0), event["addr"])
                late += 1
        self.assertGreater(late, 200)

    def test_replays_without_running_out(self) -> None:
        if not SPILLWAY:
            self.skipTest("no spillway")
        command = [SPILLWAY, "replay", "--json", "--capacity", "unlimited", *map(str, self.files.values())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for row in json.loads(done.stdout):
            with self.subTest(row["trace"]):
                self.assertEqual(row["ooms"], 0)
                self.assertGreater(row["events"], 1000)


class BadInput(unittest.TestCase):
    def refused(self, text: str, *arguments: str) -> None:
        done = make(*arguments)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(text, done.stderr)

    def test_is_refused_in_one_line(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            output = ("--output", str(folder / "new"))
            self.refused("unknown kind 'moe'; allowed: transformer_varlen", "--kind", "moe", *output)
            self.refused("--seed: '-1'; allowed: 0 to ", "--seed", "-1", *output)
            self.refused("--seed: 'x'", "--seed", "x", *output)
            self.refused("--iterations: '0'; allowed: 1 to 10000", "--iterations", "0", *output)
            self.refused("--iterations: '1e3'", "--iterations", "1e3", *output)
            self.refused("--output DIR is missing")
            self.refused("unrecognized arguments: --kinds", "--kinds", "all", *output)
            self.assertEqual(list(folder.iterdir()), [])

    def test_output_that_cannot_be_written(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "file"
            file.write_text("mine")
            arguments = ("--kind", "small_churn", "--iterations", "1", "--output")
            self.refused(str(file), *arguments, str(file))
            self.refused(str(file), *arguments, str(file / "below"))
            # A folder stands where the trace belongs: nothing unfinished stays beside it.
            taken = Path(scratch) / "small_churn.pickle.gz"
            taken.mkdir()
            self.refused(taken.name, *arguments, scratch)
            self.assertEqual(sorted(Path(scratch).iterdir()), sorted([file, taken]))
            self.assertEqual(file.read_text(), "mine")


if __name__ == "__main__":
    unittest.main()
