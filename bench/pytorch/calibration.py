#!/usr/bin/env python3
"""How near estimates come before and after calibration; writes docs/estimator-calibration.md.

Trains the transformer of examples/pytorch on the simulated device under Spillway, estimates each training before, gives
the dumps of some to `spillway calibrate`, and compares the peaks of the others with what is predicted then. To be run
by the Python of .venv, after scripts/quickstart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulated import ROOT

TRAINING = Path(__file__).with_name("annotated_training.py")
RUN_FILE = """
[model]
model_type = "gpt_neox"
hidden_size = {width}
intermediate_size = {feed_forward}
num_hidden_layers = {layers}
num_attention_heads = {heads}
vocab_size = 8000
max_position_embeddings = 8192
tie_word_embeddings = false

[train]
precision = "fp32"
"""
HEAD = """# Calibration of the estimator

Written by `bench/pytorch/calibration.py`: the transformer of `examples/pytorch` trained in fp32 with AdamW under
Spillway on the **simulated** device. Each line is a training of its own. Errors are those of the estimated peak against
what the allocator counted: before, after `spillway calibrate` on one dump of a training with the same kernels (the last
one named below), and on two, which separate what is fixed from what grows with the batch. The interval is that of the
last estimate.

Learned from, batch x sequence: {learned}.
These sizes were chosen after smaller ones had misled: where the optimizer step is as near to the peak as the end of the
forward pass, as with the fewest tokens below, a factor of the latter says little. The narrow model shows what is left
where the loss outweighs the layers. Memory here follows from the tokens of a batch: lines with as many as one that was
learned from (4 x 1024; 16 x 1024 and 8 x 2048 recomputed) show the fit, the others the prediction.
"""
TABLE = """
## {layers} layers of width {width}

| batch | sequence | recompute | measured MiB | before | one dump | two dumps | interval holds |
|---:|---:|---|---:|---:|---:|---:|---|
"""


@dataclass(frozen=True)
class Training:
    batch: int
    length: int
    recompute: str = "none"

    @property
    def settings(self) -> list[str]:
        keys = {"micro_batch": self.batch, "sequence": self.length, "recompute": self.recompute}
        return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


MODELS = ((512, 6), (256, 2))  # width, layers
# Not smaller: the optimizer step is then as near to the peak as the end of the forward pass.
LEARNED = (Training(8, 512), Training(16, 512))
LEARNED_RECOMPUTED = (Training(16, 512, "full"), Training(32, 512, "full"))
OTHERS = (Training(4, 512), Training(4, 1024), Training(16, 1024), Training(8, 2048), Training(32, 1024))


class Loop:
    """Estimate, train, calibrate, with the command of one build."""

    def __init__(self, build: Path, folder: Path, width: int, layers: int) -> None:
        self.build, self.folder, self.width, self.layers = build, folder, width, layers
        self.run_file = folder / "run.toml"
        sizes = {"width": width, "feed_forward": 4 * width, "layers": layers, "heads": width // 64}
        self.run_file.write_text(RUN_FILE.format(**sizes))

    def command(self, *words: str, allowed: tuple[int, ...] = (0,), **environment: str) -> str:
        done = subprocess.run(
            [str(self.build / "bin" / "spillway"), *words],
            env={**self.environment(), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in allowed:
            sys.exit(f"calibration.py: spillway {words[0]}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        return done.stdout

    def environment(self) -> dict[str, str]:
        defaults = {
            "PYTHONPATH": str(ROOT / "python"),
            "SPILLWAY_LIBRARY": str(self.build / "lib" / "libspillway.so.0"),
            "SPILLWAY_CACHE": str(self.build / "extension"),
            "SPILLWAY_CUDA_INCLUDE": str(ROOT / ".venv" / "cuda-headers" / "nvidia" / "cu13" / "include"),
        }
        given = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "SPILLWAY_LIBCUDA")}
        return {**defaults, **given}

    def estimate(self, training: Training, catalog: Path | None = None) -> dict[str, Any]:
        more = ["--catalog", str(catalog)] if catalog else []
        answer = self.command("estimate", str(self.run_file), "--json", *training.settings, *more, allowed=(0, 2))
        return dict(json.loads(answer))

    def train(self, training: Training) -> Path:
        """The dump it leaves."""
        dump = self.folder / f"{training.batch}x{training.length}-{training.recompute}.json"
        sizes = {"width": self.width, "layers": self.layers, "batch": training.batch, "length": training.length}
        words = [f"--{name}={value}" for name, value in sizes.items()]
        words += ["--recompute"] if training.recompute == "full" else []
        program = [sys.executable, str(TRAINING), "--steps=3", *words]
        self.command("dryrun", "--gpu-memory", "64GiB", "--no-bytes", "--", *program, SPILLWAY_STATS=str(dump))
        return dump

    def calibrate(self, training: Training, dump: Path, catalog: Path) -> None:
        self.command("calibrate", str(dump), "--run", str(self.run_file), "--catalog", str(catalog), *training.settings)


@dataclass(frozen=True)
class Row:
    training: Training
    measured_bytes: int
    before: float  # errors, as shares of what was measured
    one_dump: float
    two_dumps: float
    interval_holds: bool


def measured_peak(dump: Path) -> int:
    device = json.loads(dump.read_text())["devices"][0]
    return int(device["stats"]["allocated_bytes"]["all"]["peak"])


def compare(loop: Loop, learned: tuple[Training, ...], others: tuple[Training, ...]) -> list[Row]:
    """Rows of `others`, from dumps of `learned`."""
    dumps = {training: loop.train(training) for training in learned}
    catalogs = []
    for count in (1, len(learned)):
        catalog = loop.folder / f"{count}-{learned[0].recompute}.jsonl"
        for training in learned[-count:]:
            loop.calibrate(training, dumps[training], catalog)
        catalogs.append(catalog)
    rows = []
    for training in others:
        estimates = [loop.estimate(training, catalog) for catalog in (None, *catalogs)]
        measured = measured_peak(loop.train(training))
        errors = [estimate["peak_bytes"] / measured - 1 for estimate in estimates]
        interval = estimates[-1]["interval"]
        holds = interval["lowest_bytes"] <= measured <= interval["highest_bytes"]
        rows.append(Row(training, measured, errors[0], errors[1], errors[2], holds))
    return rows


def recomputed(trainings: tuple[Training, ...]) -> tuple[Training, ...]:
    return tuple(Training(each.batch, each.length, "full") for each in trainings)


def table_row(row: Row) -> str:
    training = row.training
    errors = " | ".join(f"{100 * error:+.1f} %" for error in (row.before, row.one_dump, row.two_dumps))
    measured = f"{row.measured_bytes / 2**20:.0f}"
    holds = "yes" if row.interval_holds else "no"
    return f"| {training.batch} | {training.length} | {training.recompute} | {measured} | {errors} | {holds} |\n"


def names(trainings: tuple[Training, ...]) -> str:
    return ", ".join(
        f"{each.batch} x {each.length}" + (" recomputed" if each.recompute == "full" else "") for each in trainings
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "estimator-calibration.md", metavar="FILE")
    options = parser.parse_args()
    page = HEAD.format(learned=names(LEARNED + LEARNED_RECOMPUTED))
    for width, layers in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            loop = Loop(options.build.resolve(), Path(folder), width, layers)
            rows = compare(loop, LEARNED, OTHERS) + compare(loop, LEARNED_RECOMPUTED, recomputed(OTHERS))
        page += TABLE.format(width=width, layers=layers) + "".join(table_row(row) for row in rows)
    options.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
