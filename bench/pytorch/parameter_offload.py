#!/usr/bin/env python3
"""Device memory of a transformer's step with offload_parameters(), with gradients and without; prints JSON.

The program runs on the simulated device, which keeps accounts and no bytes. A step is several forward and backward
passes whose gradients are added up, and the step of an optimizer without state, for which all comes back. To be run by
the Python of .venv.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from activation_offload import make_model
from simulated import ROOT, enter, run

LAYERS, WIDTH, TOKENS, PASSES = 24, 2048, 512, 4
KEEPS = (0.3, 0.0)
STEPS = 3
DEVICE = "capacity:2TiB,races:off,backing:none,completion:instant"


def program(keep: float | None, gradients: bool, layers: int, width: int, passes: int) -> dict[str, int]:
    """Bytes of the last step; `keep` None: nothing moves."""
    torch: Any = importlib.import_module("torch")
    spillway: Any = importlib.import_module("spillway")
    model = make_model(torch, width, layers)
    parameter_bytes = sum(parameter.nbytes for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if keep is not None:
        spillway.offload_parameters(model, keep, optimizer=optimizer, gradients=gradients)
    x = torch.zeros(1, TOKENS, width, device="cuda", dtype=torch.bfloat16)
    peaks: list[int] = []
    in_step = 0
    for _ in range(STEPS):
        peaks = []
        for _ in range(passes):
            torch.cuda.reset_peak_memory_stats()
            model(x).sum().backward()
            peaks.append(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        in_step = torch.cuda.max_memory_allocated()
        optimizer.zero_grad()
    moved = spillway.tier_stats()
    return {
        "parameter_bytes": parameter_bytes,
        "first_pass_peak_bytes": peaks[0],
        "later_pass_peak_bytes": max(peaks[1:], default=peaks[0]),
        "optimizer_peak_bytes": in_step,
        "out_bytes": moved["out_bytes"] // STEPS,
        "in_bytes": moved["in_bytes"] // STEPS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    parser.add_argument("--layers", type=int, default=LAYERS, metavar="N")
    parser.add_argument("--width", type=int, default=WIDTH, metavar="N", help=f"default: {WIDTH}")
    parser.add_argument("--passes", type=int, default=PASSES, metavar="N", help=f"before a step; default: {PASSES}")
    options = parser.parse_args()
    if options.width < 128 or options.width % 128 != 0:
        parser.error(f"--width {options.width}: a multiple of 128")
    if options.layers < 1 or options.passes < 1:
        parser.error("--layers and --passes: at least 1")
    enter(options.build.resolve())
    rows = []
    for keep, gradients in [(None, False)] + [(keep, gradients) for keep in KEEPS for gradients in (False, True)]:
        print(f"keep {keep}, gradients {gradients}", file=sys.stderr)
        work = functools.partial(program, keep, gradients, options.layers, options.width, options.passes)
        (outcome,) = run(work, "full", DEVICE)
        if outcome.failure:
            sys.exit(f"parameter_offload.py: {outcome.failure.strip().splitlines()[-1]}")
        rows.append({"keep": keep, "gradients": gradients, **outcome.value})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
