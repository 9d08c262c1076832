"""Each header with logic in allocator/ and offload/ has a test of its name: tests/allocator/heap_test.cpp for heap.h.

A header has logic where a source of its name stands beside it, or where a function has its body in it. With --self-test
it checks itself.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

FOLDERS = ("allocator", "offload")
BODY = re.compile(r"\)\s*(const|noexcept|override|\s)*\{", re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*")


def has_logic(header: Path) -> bool:
    return header.with_suffix(".cpp").is_file() or BODY.search(COMMENT.sub("", header.read_text())) is not None


def complaints(root: Path) -> list[str]:
    """A line for each header without a test."""
    found = []
    for folder in FOLDERS:
        tests = {test.name for test in (root / "tests" / folder).rglob("*_test.cpp")}
        for header in sorted((root / folder).rglob("*.h")):
            if has_logic(header) and f"{header.stem}_test.cpp" not in tests:
                found.append(f"{header.relative_to(root).as_posix()}: no {header.stem}_test.cpp in tests/{folder}")
    return found


def self_test() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("allocator", "offload/io", "tests/allocator", "tests/offload"):
            (root / name).mkdir(parents=True)
        (root / "allocator/plain.h").write_text("struct Plain { int a = 0; };  // (it) {\n")
        (root / "allocator/inline.h").write_text("inline int one() {\n  return 1;\n}\n")
        (root / "offload/io/queue.h").write_text("class Queue;\n")
        (root / "offload/io/queue.cpp").write_text("")
        assert complaints(root) == [
            "allocator/inline.h: no inline_test.cpp in tests/allocator",
            "offload/io/queue.h: no queue_test.cpp in tests/offload",
        ]
        (root / "tests/offload/queue_test.cpp").write_text("")
        assert complaints(root) == ["allocator/inline.h: no inline_test.cpp in tests/allocator"]


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    found = complaints(Path(sys.argv[1]))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
