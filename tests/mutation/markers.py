"""Finds the statements of the allocator that `// mutant: name` marks: those that begin on its line, or below it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from operators import Operator, mutate
from statements import NotUnderstoodError, statement_at, without_comments

MARKER = re.compile(r"^(?P<code>.*)// mutant: (?P<name>[a-z0-9-]+)$", re.MULTILINE)


def find(source: Path) -> dict[str, list[Path]]:
    """The files in which each marker occurs, one for each time."""
    files = defaultdict(list)
    for file in sorted((source / "allocator").iterdir()):
        if file.suffix in (".h", ".cpp"):
            for found in MARKER.finditer(file.read_text()):
                files[found["name"]].append(file)
    return files


def apply(text: str, marker: str, operator: Operator) -> str:
    """A file's text with the operator done to what the marker marks."""
    found = next((found for found in MARKER.finditer(text) if found["name"] == marker), None)
    if found is None:
        raise NotUnderstoodError("its marker is not there any more")
    begin = found.start() if found["code"].strip() else found.end()
    begin += len(text[begin:]) - len(text[begin:].lstrip())
    code = without_comments(text)
    begin += len(code[begin:]) - len(code[begin:].lstrip())
    begin, end = statement_at(text, begin)
    return text[:begin] + mutate(code[begin:end], operator) + text[end:]


def mutated_files(edits: Mapping[str, Operator], places: Mapping[str, list[Path]]) -> dict[Path, str]:
    texts: dict[Path, str] = {}
    for marker, operator in edits.items():
        (file,) = places[marker]
        texts[file] = apply(texts.get(file) or file.read_text(), marker, operator)
    return texts
