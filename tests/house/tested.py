"""Each header with logic in allocator/ and offload/ has a test of its name: tests/allocator/heap_test.cpp for heap.h.

A header has logic where a source of its name stands beside it, or where a function has its body in it. Those that have
none of their own yet are listed here, and leave the list when they have one. With --self-test it checks itself.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

FOLDERS = ("allocator", "offload")
BODY = re.compile(r"\)\s*(const|noexcept|override|\s)*\{", re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*")
# Tested through those that use them.
WITHOUT_OWN = frozenset(
    {
        "offload/gauges.h",
        "offload/host_overflow.h",
        "offload/io/engine.h",
        "offload/io/faulty_queue.h",
        "offload/io/file.h",
        "offload/io/file_calls.h",
        "offload/io/measure.h",
        "offload/spill/block_mover.h",
        "offload/spill/copy_queue.h",
        "offload/spill/copy_streams.h",
        "offload/spill/device_tiers.h",
        "offload/spill/disk_tier.h",
        "offload/spill/packer.h",
        "offload/spill/region_memory.h",
        "offload/spill/staging.h",
        "offload/spill/workers.h",
    }
)


def has_logic(header: Path) -> bool:
    return header.with_suffix(".cpp").is_file() or BODY.search(COMMENT.sub("", header.read_text())) is not None


def complaints(root: Path, without_own: frozenset[str]) -> list[str]:
    """A line for each header without a test, and for each that is listed and has one, or is none."""
    found, listed = [], set(without_own)
    for folder in FOLDERS:
        tests = {test.name for test in (root / "tests" / folder).rglob("*_test.cpp")}
        for header in sorted((root / folder).rglob("*.h")):
            name = header.relative_to(root).as_posix()
            is_tested = f"{header.stem}_test.cpp" in tests
            if name in listed:
                listed.remove(name)
                if is_tested:
                    found.append(f"{name}: has a test of its name, and is listed as one that has none")
            elif has_logic(header) and not is_tested:
                found.append(f"{name}: no {header.stem}_test.cpp in tests/{folder}")
    return found + [f"{name}: listed as a header without a test, and there is none" for name in sorted(listed)]


def self_test() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("allocator", "offload/io", "tests/allocator", "tests/offload"):
            (root / name).mkdir(parents=True)
        (root / "allocator/plain.h").write_text("struct Plain { int a = 0; };  // (it) {\n")
        (root / "allocator/inline.h").write_text("inline int one() {\n  return 1;\n}\n")
        (root / "offload/io/queue.h").write_text("class Queue;\n")
        (root / "offload/io/queue.cpp").write_text("")
        assert complaints(root, frozenset()) == [
            "allocator/inline.h: no inline_test.cpp in tests/allocator",
            "offload/io/queue.h: no queue_test.cpp in tests/offload",
        ]
        (root / "tests/offload/queue_test.cpp").write_text("")
        assert len(complaints(root, frozenset({"allocator/inline.h"}))) == 0
        assert len(complaints(root, frozenset({"allocator/inline.h", "offload/io/queue.h", "offload/gone.h"}))) == 2


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    found = complaints(Path(sys.argv[1]), WITHOUT_OWN)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
