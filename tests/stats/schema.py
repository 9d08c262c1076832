"""Dumps are as docs/schema/dump.schema.json says, and the schema notices when they are not.

usage: schema.py SCHEMA PROGRAM-THAT-PRINTS-A-DUMP
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every member of every object in the document."""
    if isinstance(value, dict):
        found = [(*at, key) for key in value]
        return found + [path for key, item in value.items() for path in paths(item, (*at, key))]
    if isinstance(value, list):
        return [path for index, item in enumerate(value) for path in paths(item, (*at, index))]
    return []


def without(document: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(document)
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    del parent[path[-1]]
    return changed


def main() -> int:
    schema = json.loads(Path(sys.argv[1]).read_text())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    dump = json.loads(subprocess.run(sys.argv[2:], capture_output=True, check=True).stdout)
    complaints = [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(dump)]
    # Options come and go, annotations are the program's, a climb tries some rungs, and a catalog has the groups there
    # are; everything else is promised.
    for path in paths(dump):
        promised = not {"config", "annotations", "rung_ns", "predicted", "measured"}.intersection(path[:-1])
        if promised and validator.is_valid(without(dump, path)):
            complaints.append(f"the schema does not miss {path}")
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
