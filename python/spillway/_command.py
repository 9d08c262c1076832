"""The command `spillway` of an installed package."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._library import HERE


def main() -> NoReturn:
    command = HERE / "bin" / "spillway"
    if not command.exists():
        sys.exit(f"spillway: the package in {HERE} lacks its command; install it again")
    os.environ["SPILLWAY_PYTHON"] = sys.executable  # dryrun and trace-model use this Python's PyTorch
    os.execv(command, ["spillway", *sys.argv[1:]])
