#!/usr/bin/env python3
"""Peaks of training a small language model, eager and through torch.compile, each mode in a dry run of its own.

    compiled.py                        # a Python with PyTorch and its Triton
    compiled.py --modes max-autotune

One JSON line per mode: the peak allocated of the first three steps, in which kernels are compiled and timed and graphs
captured (first_mib), that of the steps after them (steady_mib) with what is reserved then (reserved_mib), and seconds.
Graphs keep what they use reserved in a pool, and steady_mib of the modes that have them is what is allocated beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COMMAND = HERE.parents[1] / "build" / "release" / "bin" / "spillway"
MODES = ("eager", "default", "reduce-overhead", "max-autotune")


def measured(command: Path, program: list[str]) -> dict[str, Any]:
    words = [str(command), "dryrun", "--gpu-memory", "80GiB", "--", *program]
    began = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds = round(time.monotonic() - began, 1)
    if done.returncode != 0:
        return {"exit_code": done.returncode, "seconds": seconds, "stderr": done.stderr[-2000:]}
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": seconds}


def train(mode: str, layers: int, width: int, steps: int) -> None:
    import torch
    from models import LanguageModel, Sizes

    torch.manual_seed(0)
    model = LanguageModel(Sizes(layers, width, 4, 8192, 0)).cuda()
    run: Any = model if mode == "eager" else torch.compile(model, mode=mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 8192, (4, 512)).cuda()
    peaks = []
    for step in range(steps):
        if step == 3:
            peaks.append(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    peaks.append(torch.cuda.max_memory_allocated())
    peaks.append(torch.cuda.max_memory_reserved())
    names = ("first_mib", "steady_mib", "reserved_mib")
    print(json.dumps({name: round(peak / 2**20, 1) for name, peak in zip(names, peaks, strict=True)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=6, help="more than 3")
    parser.add_argument("--command", type=Path, default=COMMAND, help="spillway, of the build unless given")
    parser.add_argument("--train", choices=MODES, help="is the program of a dry run")
    options = parser.parse_args()
    if options.train:
        train(options.train, options.layers, options.width, options.steps)
        return
    sizes = [word for name in ("layers", "width", "steps") for word in (f"--{name}", str(getattr(options, name)))]
    failed = False
    for mode in options.modes:
        row = measured(options.command, [sys.executable, str(Path(__file__).resolve()), "--train", mode, *sizes])
        failed |= "exit_code" in row
        print(json.dumps({"mode": mode, **row}), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
