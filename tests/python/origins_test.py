"""A PyTorch program that runs out of memory, told which of its lines hold it: by the error, and by the dump."""

from __future__ import annotations

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
import torch, spillway
assert spillway.install()

def batch():
    return torch.ones(512, 1024, device="cuda")

layers = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
layers(batch()).sum().backward()
kept = []
def hoard():
    while True:
        kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
hoard()
"""
HOARD = 13  # the line that holds the most
LIMIT = 1 << 30


def run_out(folder: Path, **environment: str) -> str:
    """The text of the error."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    options = ",".join(filter(None, [f"limit:{LIMIT}", environment.pop("options", "")]))
    variables = os.environ | environment | {"SPILLWAY_CONF": options}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, env=variables, timeout=300
    )
    assert "OutOfMemoryError" in done.stderr, done.stderr
    return done.stderr


def report(dump: Path, *options: str) -> str:
    without = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(
        [os.environ["SPILLWAY_COMMAND"], "report", str(dump), *options],
        capture_output=True,
        text=True,
        check=False,
        env=without,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def held(snapshot: Any) -> dict[str, int]:
    """Bytes by the innermost frame's function."""
    out: dict[str, int] = {}
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["frames"]:
                name = block["frames"][0]["name"]
                out[name] = out.get(name, 0) + block["requested_size"]
    return out


class Origins(unittest.TestCase):
    def test_the_error_and_the_dump_name_the_lines(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            error = run_out(folder, SPILLWAY_STATS=str(folder / "run.json"))
            answer = json.loads(report(folder / "run.oom.json", "--json"))
            text = report(folder / "run.oom.json")
        self.assertIn(f"\n  held by hoard {folder}/program.py:{HOARD} ", error)
        sites = {row["site"]: row["live_bytes"] for row in answer["sites"]}
        hoarded = sites[f"hoard {folder}/program.py:{HOARD}"]
        self.assertEqual(hoarded % (64 << 20), 0)
        self.assertGreater(hoarded, LIMIT * 3 // 4)
        # The gradients are of a thread that runs no Python: they are known by their operator.
        self.assertTrue(any("Backward0" in site for site in sites), sites)
        self.assertIn(f"The most is held by hoard {folder}/program.py:{HOARD}: ", text)

    def test_a_snapshot_has_the_stacks_too(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run_out(folder, SPILLWAY_STATS=str(folder / "run.pickle"))
            snapshot = pickle.loads((folder / "run.oom.pickle").read_bytes())
        by_function = held(snapshot)
        self.assertGreater(by_function["hoard"], LIMIT * 3 // 4)

    def test_without_a_dump_the_error_says_how_to_learn_them(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            unknown = run_out(folder)
            asked = run_out(folder, options="dump_stacks:on")
        self.assertNotIn("held by", unknown)
        self.assertIn("dump_stacks:on", unknown)
        self.assertIn(f"\n  held by hoard {folder}/program.py:{HOARD} ", asked)


if __name__ == "__main__":
    unittest.main()
