#!/usr/bin/env python3
"""Recorded runs of Megatron-LM that need no Transformer Engine, and the dry run of the same: peaks of the last rank.

    megatron_goldens.py megatron_measured.jsonl --python VENV/bin/python

The file has a run a line, with `args`, `env`, `gpu`, `gpus`, `date`, `steady_bytes` and `peak_bytes`. Runs whose
arguments say the same of memory are one dry run; of a mixture of experts one for each size of a workspace that its
router keeps. The Python needs a PyTorch for CUDA and megatron-core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COMMAND = HERE.parents[1] / "build" / "release" / "bin" / "spillway"
MIB = 1 << 20
# These arguments say nothing of a step's memory.
WITHOUT_MEMORY = (
    "iters",
    "interval",
    "log-timers",
    "log-level",
    "log-validation",
    "lr",
    "split",
    "decay",
    "ckpt",
    "save",
)


def runs_of(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text().splitlines():
        run = json.loads(line)
        if run["args"].get("transformer-impl") == "local" and "num-layers" in run["args"]:
            yield run


def key_of(run: dict[str, Any]) -> str:
    telling = {name: value for name, value in run["args"].items() if not any(word in name for word in WITHOUT_MEMORY)}
    older = "num-experts" in telling and run["gpu"] == "a100"
    return json.dumps([run["gpus"], older, sorted(telling.items())])


def dryrun(command: Path, python: str, run: dict[str, Any]) -> list[dict[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        file.write_text(json.dumps(run))
        ranks = str(run["gpus"])
        torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        program = [*torchrun, "--nproc-per-node", ranks, str(HERE / "megatron_train.py"), str(file)]
        words = [str(command), "dryrun", "--gpu-memory", "80GiB", "--devices", ranks, "--allocator", "native"]
        environment = {**os.environ, **run["env"]}
        done = subprocess.run([*words, "--", *program], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{run['case']}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    answer = next(line for line in done.stdout.splitlines() if line.startswith('{"steps"'))
    steps: list[dict[str, int]] = json.loads(answer)["steps"]
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--command", type=Path, default=COMMAND, help="spillway, of the build unless given")
    parser.add_argument("--only", default="", help="a part of the case's name")
    options = parser.parse_args()
    known: dict[str, list[dict[str, int]]] = {}
    errors = []
    runs = [run for run in runs_of(options.file) if options.only in run["case"]]
    if not runs:
        parser.error(f"{options.file} has no run of Megatron-LM's own layers with '{options.only}' in its case's name")
    for run in runs:
        key = key_of(run)
        if key not in known:
            known[key] = dryrun(options.command, options.python, run)
        last = known[key][-1]
        error = 100 * (last["peak"] / run["peak_bytes"] - 1)
        steady = 100 * (last["current"] / run["steady_bytes"] - 1)
        errors.append(abs(error))
        print(
            f"| {run['case'].split('/')[-1]} | {run['gpu']}, {run['date']} | {run['peak_bytes'] / MIB:,.1f} "
            f"| {last['peak'] / MIB:,.1f} | {error:+.2f} % | {steady:+.2f} % |",
            flush=True,
        )
    print(f"{len(errors)} runs: median {statistics.median(errors):.2f} %, worst {max(errors):.2f} %")


if __name__ == "__main__":
    main()
