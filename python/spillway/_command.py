"""The command `spillway` of an installed package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from ._errors import SpillwayError
from ._library import HERE, part


def installed_command() -> Path:
    """Of the wheel, or the one built in a checkout. Errors: SpillwayError."""
    return part("bin/spillway", "build/release/bin/spillway")


def command_path() -> Path:
    """For who starts it from Python: $SPILLWAY_COMMAND, or the installed one. Errors: SpillwayError."""
    named = os.environ.get("SPILLWAY_COMMAND")
    return Path(named) if named else installed_command()


def main() -> NoReturn:
    try:
        command = installed_command()
    except SpillwayError as problem:
        sys.exit(f"spillway: {problem}")
    os.environ["SPILLWAY_PYTHON"] = sys.executable  # dryrun and trace-model use this Python's PyTorch
    if command.parents[1] != HERE:  # it is installed as editable: the command cannot find it
        os.environ.setdefault("SPILLWAY_PACKAGE", str(HERE))
    os.execv(command, ["spillway", *sys.argv[1:]])
