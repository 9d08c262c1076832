#!/usr/bin/env python3
"""Finds what PyTorch's memory functions do on its own allocator, on RMM and on Spillway: docs/pytorch-conformance.md.

To be run by the Python of .venv. Every public function that the installed PyTorch has must have a case. RMM is
installed beside the build on first use.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[1:1] = [str(ROOT / "bench" / "pytorch"), str(ROOT / "bench")]
from simulated import enter  # noqa: E402

RMM_RELEASE = "26.10.0"
RMM = (
    f"rmm-cu13=={RMM_RELEASE}",
    f"librmm-cu13=={RMM_RELEASE}",
    "rapids-logger==0.3.0",
    "cuda-bindings==13.5.0",
    "cuda-pathfinder==1.9.0",
)


def install_rmm(folder: Path) -> str:
    if not (folder / "rmm").exists():
        print(f"installing {RMM[0]} into {folder}", file=sys.stderr)
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *RMM]
        if subprocess.run(words, check=False).returncode != 0:
            sys.exit(f"print_conformance.py: pip could not install {' '.join(RMM)}")
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "pytorch-conformance.md", metavar="FILE")
    options = parser.parse_args()
    enter(options.build.resolve())
    # It imports PyTorch, which the simulated device must precede.
    findings: Any = importlib.import_module("findings")
    if missing := findings.functions_without_case():
        sys.exit(f"print_conformance.py: {', '.join(missing)}: no case in {Path(__file__).parent}; write one")
    rmm = install_rmm(options.build.resolve() / "rmm")
    try:
        options.output.write_text(findings.whole_page(rmm, RMM_RELEASE))
    except OSError as problem:
        sys.exit(f"print_conformance.py: {options.output}: {problem.strerror}")


if __name__ == "__main__":
    main()
