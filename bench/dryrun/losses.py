#!/usr/bin/env python3
"""Losses on the simulated device, every operator computed, beside those of PyTorch on the CPU, in 32 bits.

losses.py                             # models of plain PyTorch
losses.py --transformers              # and small ones of the package transformers, of the Python that runs this
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMAND = HERE.parents[1] / "build" / "release" / "bin" / "spillway"
PLAIN = {"GPT": [], "mixture of experts": ["--experts", "4"]}


def losses(words: list[str]) -> list[float]:
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout)["losses"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--command", type=Path, default=COMMAND, help="spillway, of the build unless given")
    options = parser.parse_args()
    programs = {name: ["train.py", *more] for name, more in PLAIN.items()}
    if options.transformers:
        programs |= {name: ["train_transformers.py", name] for name in ("gpt2", "mixtral", "qwen3_moe")}
    for name, (program, *more) in programs.items():
        words = [sys.executable, str(HERE / program), *more, "--steps", str(options.steps)]
        host = losses([*words, "--device", "cpu"])
        dryrun = [str(options.command), "dryrun", "--gpu-memory", "8GiB", "--values", "all", "--"]
        device = losses([*dryrun, *words])
        difference = max(abs(a - b) for a, b in zip(host, device, strict=True))
        print(
            json.dumps({"model": name, "first": host[0], "last": host[-1], "largest_difference": difference}),
            flush=True,
        )


if __name__ == "__main__":
    main()
