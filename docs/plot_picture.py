#!/usr/bin/env python3
"""Writes docs/pictures/plot.png: `spillway plot` of a recorded training that is in the repository.

usage: docs/plot_picture.py [SPILLWAY]     (default: build/release/bin/spillway)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "examples" / "traces" / "small_transformer.pickle.gz"


def main() -> int:
    spillway = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build" / "release" / "bin" / "spillway")
    picture = ROOT / "docs" / "pictures" / "plot.png"
    picture.parent.mkdir(exist_ok=True)
    return subprocess.run([spillway, "plot", str(TRACE), "--output", str(picture), "--width", "1000"]).returncode


if __name__ == "__main__":
    sys.exit(main())
