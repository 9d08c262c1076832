"""The command: packs, proves, records."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from . import record
from .layout import ABOUT, BUILD, ROOT, Machine, UnusableError, find_python
from .pack import pack
from .results import Results, read
from .running import Stage
from .stages import STAGES, Kind
from .table import print_table

HALF_AN_HOUR = 1770.0
NAMES = tuple(kind.name for kind in STAGES)
DESCRIPTION = """Proves on a machine with a GPU what only hardware can prove (docs/hardware-proof.md).

  scripts/prove --pack parcel.tar.xz    where the project is built: packs what the machine with the GPU needs
  scripts/prove                         in the unpacked parcel, or in a checkout: runs the stages that are not done yet
  scripts/prove --record proof          where the project is: puts what was found into docs/hardware-proof.md

Exit code 0 where everything held, 1 where something did not or is not done, 2 where the command cannot be used so."""


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "prove", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    job = parser.add_mutually_exclusive_group()
    job.add_argument("--pack", type=Path, metavar="FILE_OR_DIR", help="an archive (.tar.xz, .tar.gz) or a folder")
    job.add_argument(
        "--record", type=Path, metavar="RESULTS", help="the folder of results; `none`: only the page, anew"
    )
    parser.add_argument("--build", type=Path, default=ROOT / BUILD, help="what to pack; build/release")
    parser.add_argument("--results", type=Path, default=Path("proof"), help="folder of results; ./proof")
    parser.add_argument("--stage", action="append", choices=NAMES, help="only this one; may be repeated")
    parser.add_argument("--again", action="store_true", help="also what is done already")
    parser.add_argument("--simulated", action="store_true", help="on the simulated device: proves that the stages run")
    parser.add_argument("--python", help="the Python that has PyTorch; without it the first that does")
    parser.add_argument("--seconds", type=seconds_of, default=HALF_AN_HOUR, help="after which this call ends; 1770")
    return parser.parse_args(words)


def seconds_of(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text}: allowed is a number from 1 to 86400")
    return seconds


def run_stage(kind: Kind, machine: Machine, results: Results, seconds: float) -> None:
    """Whatever goes wrong in one stage is a result of that stage."""
    print(f"{kind.name} (at most {min(kind.seconds, seconds):.0f} s)", flush=True)
    begin = time.monotonic()
    stage = Stage(kind.name, machine, results, min(kind.seconds, seconds), seconds < kind.seconds)
    stage.kept.pop("problem", None)
    try:
        kind.run(stage)
    except Exception as problem:  # of a machine that nobody has seen before
        stage.kept["problem"] = f"{type(problem).__name__}: {problem}"
        print(f"  {stage.kept['problem']}", flush=True)
    stage.kept["seconds"] = round(stage.kept["seconds"] + time.monotonic() - begin, 1)
    stage.kept["left_out"] = stage.left_out
    # Left out for want of this call's time, a step runs in the next call; of the stage's own, it never would.
    stage.kept["done"] = not (stage.left_out and stage.is_short)
    results.save()


def prove(options: argparse.Namespace) -> int:
    machine = Machine(ROOT, find_python(options.python, ROOT), options.simulated)
    results = Results(options.results.resolve())
    if results.data.setdefault("simulated", options.simulated) != options.simulated:
        raise UnusableError(f"{options.results} has results of another device; name another folder with --results")
    results.data.setdefault("started", time.strftime("%Y-%m-%dT%H:%M:%S"))
    about = machine.root / ABOUT
    results.data["commit"] = json.loads(about.read_text())["commit"] if about.exists() else "of the checkout"
    end = time.monotonic() + options.seconds
    for kind in STAGES:
        if options.stage and kind.name not in options.stage:
            continue
        if options.again:
            results.forget(kind.name)
        if results.stage(kind.name)["done"]:
            print(f"{kind.name}: done before")
            continue
        run_stage(kind, machine, results, end - time.monotonic())
    print()
    return 0 if print_table(results.data) else 1


def run(options: argparse.Namespace) -> int:
    if options.pack:
        print(pack(options.pack, options.build.resolve(), find_python(options.python, ROOT)))
    elif options.record:
        record.record(None if str(options.record) == "none" else read(options.record))
        print(f"written: {record.DOCUMENT}, {record.COSTS}")
    else:
        return prove(options)
    return 0


def main(words: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        return run(arguments(words))
    except UnusableError as problem:
        print(f"prove: {problem}", file=sys.stderr)
    except OSError as problem:
        print(f"prove: {problem.filename}: {problem.strerror}", file=sys.stderr)
    return 2
