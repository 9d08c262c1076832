"""The command `spillway` of an installed package."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._errors import SpillwayError
from ._library import HERE, part


def main() -> NoReturn:
    try:
        command = part("bin/spillway", "build/release/bin/spillway")
    except SpillwayError as problem:
        sys.exit(f"spillway: {problem}")
    os.environ["SPILLWAY_PYTHON"] = sys.executable  # dryrun and trace-model use this Python's PyTorch
    if command.parents[1] != HERE:  # it is installed as editable: the command cannot find it
        os.environ.setdefault("SPILLWAY_PACKAGE", str(HERE))
    os.execv(command, ["spillway", *sys.argv[1:]])
