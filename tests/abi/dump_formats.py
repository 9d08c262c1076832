"""What a program dumps is what readers expect: JSON by its schema, a snapshot by PyTorch's own reader, text by
Prometheus' grammar, all with the totals of the counters; and a killed program leaves nothing that is broken.

usage: dump_formats.py PROGRAM SCHEMA [--viewer FILE] [--kills N]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import pickletools
import random
import re
import runpy
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, ClassVar

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

# Opcodes that the reader of pytorch.org/memory_viz knows, by pickletools' names.
VIEWER_READS = {
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
    *("EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MEMOIZE"),
}
MOST_ITEMS = 1000
SAMPLE = re.compile(r"^(spillway_[a-z0-9_]+)\{([a-z]+=\"(?:[^\"\\]|\\.)*\"(?:,[a-z]+=\"(?:[^\"\\]|\\.)*\")*)\} (\S+)$")


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Every sample of the text; each family announced once, before them, and without gaps between them."""
    found = []
    announced: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current not in announced, f"{current} is announced twice"
            assert (kind == "counter") == current.endswith("_total"), line
            announced[current] = kind
            continue
        match = SAMPLE.match(line)
        assert match is not None, f"not a sample: {line}"
        assert match[1] == current, f"{match[1]} among the samples of {current}"
        labels = dict(re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', match[2]))
        found.append((match[1], labels, float(match[3])))
    assert len({(name, *sorted(labels.items())) for name, labels, _ in found}) == len(found), "a sample comes twice"
    return found


def check_opcodes(data: bytes) -> None:
    """Only what the viewer reads, in batches that it can take."""
    for opcode, value, _ in pickletools.genops(data):
        assert opcode.name in VIEWER_READS, f"the viewer does not read {opcode.name}"
        assert opcode.name != "PROTO" or value == 2, f"protocol {value}"
    # How long a batch is, CPython's reader in Python says.
    longest = 0

    class Reader(pickle._Unpickler):
        def pop_mark(self) -> list[Any]:
            nonlocal longest
            batch: list[Any] = super().pop_mark()  # type: ignore[misc]
            longest = max(longest, len(batch))
            return batch

    Reader(io.BytesIO(data)).load()
    # A dictionary's keys and values are two.
    assert longest <= 2 * MOST_ITEMS, f"a batch of {longest}"


def parse(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".prom":
        return samples(path.read_text())
    return pickle.loads(path.read_bytes())


class DumpFormats(unittest.TestCase):
    program: ClassVar[str]
    schema: ClassVar[Path]
    viewer: ClassVar[Path | None]
    kills: ClassVar[int]

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def dump(self, name: str, **environment: str) -> tuple[Path, dict[str, int]]:
        path = self.folder / name
        done = subprocess.run(
            [self.program, "once"],
            env={**os.environ, "SPILLWAY_STATS": str(path), **environment},
            capture_output=True,
            check=True,
            timeout=120,
        )
        self.assertEqual(done.stderr, b"")
        counters: dict[str, int] = json.loads(done.stdout)
        self.assertEqual([file.name for file in self.folder.iterdir()], [name])
        return path, counters

    def test_json_is_as_its_schema_says(self) -> None:
        path, counters = self.dump("dump.json")
        dump = json.loads(path.read_text())
        errors = [f"{list(error.path)}: {error.message}" for error in self.validator().iter_errors(dump)]
        self.assertEqual(errors, [])
        self.assertEqual(dump["reason"], "exit")
        (device,) = dump["devices"]
        self.assertEqual(device["stats"]["reserved_bytes"]["all"]["current"], counters["reserved"])
        held = device["free_bytes"] + device["other_bytes"] + counters["reserved"]
        self.assertEqual(held, device["total_bytes"])

    def validator(self) -> Any:
        return Draft202012Validator(json.loads(self.schema.read_text()))

    def test_a_snapshot_is_read_by_the_viewers(self) -> None:
        path, counters = self.dump("dump.pickle")
        data = path.read_bytes()
        check_opcodes(data)
        segments = pickle.loads(data)["segments"]
        for name, key in (("reserved", "total_size"), ("allocated", "allocated_size"), ("active", "active_size")):
            self.assertEqual(sum(segment[key] for segment in segments), counters[name], name)
        self.assertEqual(sum(segment["requested_size"] for segment in segments), counters["requested"])
        if self.viewer is None:
            self.skipTest("no PyTorch here")
        viewer = runpy.run_path(str(self.viewer))
        size, report = viewer["Bytes"], viewer["segsum"](pickle.loads(data))
        self.assertIn(f"total_reserved: {size(counters['reserved'])}\n", report)
        page = str(self.folder / "out.html")
        for what in (["stats"], ["trace"], ["trace_plot", "-o", page], ["segment_plot", "-o", page]):
            command = [sys.executable, str(self.viewer), what[0], str(path), *what[1:]]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, f"{what[0]}: {done.stderr}")

    def test_prometheus_reads_the_text(self) -> None:
        path, counters = self.dump("dump.prom")
        found = samples(path.read_text())
        for name in ("reserved", "allocated", "active", "requested"):
            pools = [value for family, _, value in found if family == f"spillway_{name}_bytes"]
            self.assertEqual(sum(pools), counters[name], name)
            self.assertEqual(len(pools), 2)
        (limit,) = [value for family, _, value in found if family == "spillway_limit_bytes"]
        self.assertEqual(limit, float("inf"))

    def left_over(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if name.endswith(".spillway-tmp")]

    def let_run(self, running: subprocess.Popen[bytes], until: float, aimed: bool) -> None:
        """Until a random moment or, aimed, until the next that finds a file half written."""
        while time.monotonic() < until and running.poll() is None:
            if aimed and self.left_over():
                return
            if not aimed:
                time.sleep(max(0, until - time.monotonic()))

    def test_nothing_is_broken_when_the_program_is_killed(self) -> None:
        randomness = random.Random(self.kills)
        cut_short = 0
        for number in range(self.kills):
            running = subprocess.Popen([self.program, "forever", str(self.folder)], stdout=subprocess.PIPE)
            assert running.stdout is not None
            running.stdout.read(1)
            aimed = number % 2 == 0
            self.let_run(running, time.monotonic() + (5 if aimed else randomness.uniform(0, 0.1)), aimed)
            self.assertIsNone(running.poll())
            running.kill()
            running.wait()
            running.stdout.close()
            names = set(os.listdir(self.folder))
            left = set(self.left_over())
            self.assertEqual(sorted(names - left), ["dump.json", "dump.pickle", "dump.prom"])
            for name in names - left:
                parse(self.folder / name)
            # Each process removed what the one before it left.
            self.assertLessEqual(len(left), 1, left)
            cut_short += len(left)
        # Else no kill came at a moment that matters.
        self.assertGreater(cut_short, 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("schema", type=Path)
    parser.add_argument("--viewer", type=Path)
    parser.add_argument("--kills", type=int, default=40)
    arguments, rest = parser.parse_known_args()
    for name, value in vars(arguments).items():
        setattr(DumpFormats, name, value)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
