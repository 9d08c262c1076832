"""What was found, in one file that is whole after every step, so that nothing is lost and nothing is done twice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .layout import UnusableError

FILE = "results.json"


class Results:
    """`data`: {"simulated", "started", "stages": {NAME: {"done", "seconds", "steps": {NAME: step}, "found": {}}}}."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.file = folder / FILE
        self.data: dict[str, Any] = read(folder) if self.file.exists() else {"schema_version": 1, "stages": {}}

    def save(self) -> None:
        beside = self.file.with_suffix(".part")
        beside.write_text(json.dumps(self.data, indent=1) + "\n")
        os.replace(beside, self.file)

    def stage(self, name: str) -> dict[str, Any]:
        made: dict[str, Any] = self.data["stages"].setdefault(
            name, {"done": False, "seconds": 0, "steps": {}, "found": {}}
        )
        return made

    def forget(self, name: str) -> None:
        self.data["stages"].pop(name, None)
        self.save()


def read(folder: Path) -> dict[str, Any]:
    """Of a folder of results, or the file in it. Errors: UnusableError, OSError."""
    file = folder / FILE if folder.is_dir() else folder
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except ValueError as problem:
        raise UnusableError(f"{file}: it is no JSON ({problem})") from None
    if not isinstance(found, dict) or not isinstance(found.get("stages"), dict):
        raise UnusableError(f"{file}: it is no file of results, which have `stages`")
    return found
