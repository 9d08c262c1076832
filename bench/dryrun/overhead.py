#!/usr/bin/env python3
"""What computing values costs a dry run: the CPU time of a training step of a model of 24 layers, by --values; of many
steps the shortest, in turns.

    overhead.py                # 32 bits
    overhead.py --autocast     # and 16 bits
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMAND = HERE.parents[1] / "build" / "release" / "bin" / "spillway"
SIZES = {"layers": 24, "width": 1024, "heads": 16, "vocabulary": 32000, "length": 1024, "batch": 4}


def step_ms(command: Path, values: str, steps: int, more: list[str]) -> float:
    sizes = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]
    program = [sys.executable, str(HERE / "train.py"), "--no-losses", "--steps", str(steps), *sizes, *more]
    words = [str(command), "dryrun", "--gpu-memory", "80GiB", "--values", values, "--", *program]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return float(json.loads(done.stdout)["step_ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--command", type=Path, default=COMMAND, help="spillway, of the build unless given")
    options = parser.parse_args()
    for more in [[], ["--autocast"]] if options.autocast else [[]]:
        least = {"none": float("inf"), "small": float("inf")}
        for _ in range(options.rounds):
            for values in least:
                least[values] = min(least[values], step_ms(options.command, values, options.steps, more))
        ratio = round(least["small"] / least["none"], 3)
        print(json.dumps({"autocast": bool(more), **least, "ratio": ratio}), flush=True)


if __name__ == "__main__":
    main()
