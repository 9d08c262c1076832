"""Every lock of the sources is missed by clang's thread-safety analysis when it is taken away, and so by scripts/lint.

    locks.py ROOT INCLUDE...    INCLUDE: folders with the headers of CUDA and of libraries
    locks.py --list ROOT        the locks that are looked at

A lock that guards no member, but an order, says so at the end of its line: "// orders ...". One line for each lock that
is not missed; exit code 1 where there is one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDERS = ("stats", "allocator", "offload", "abi")
LOCK = re.compile(r"^\s*(?:const )?(?:Lock|ArenaLock|HeapLock|PausableLock|SharedLock)(?:<\w+>)? \w+\([^;]*\);(.*)$")


def locks_of(source: Path) -> list[int]:
    lines = source.read_text().splitlines()
    return [at for at, line in enumerate(lines) if (found := LOCK.match(line)) and "// orders " not in found.group(1)]


def complains(clang: str, root: Path, includes: list[str], source: Path, text: str) -> bool:
    command = [clang, "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety", "-x", "c++"]
    command += [f"-I{root}", f"-I{root / 'include'}", f"-I{source.parent}"]
    command += [word for folder in includes for word in ("-isystem", folder)]
    return subprocess.run([*command, "-"], input=text, text=True, capture_output=True, cwd=root).returncode != 0


def main() -> int:
    listing = sys.argv[1] == "--list"
    root, includes = Path(sys.argv[1 + listing]).resolve(), sys.argv[2 + listing :]
    clang = shutil.which("clang++-14") or shutil.which("clang++") or sys.exit("locks.py: there is no clang++")
    sources = sorted(
        source for folder in FOLDERS for suffix in ("cpp", "h") for source in (root / folder).rglob(f"*.{suffix}")
    )
    looked_at = [(source, at) for source in sources for at in locks_of(source)]
    if listing:
        print(*(f"{source.relative_to(root)}:{at + 1}" for source, at in looked_at), sep="\n")
        return 0

    def is_missed(source: Path, at: int | None) -> bool:
        lines = source.read_text().splitlines()
        if at is not None:
            lines[at] = ""
        return complains(clang, root, includes, source, "\n".join(lines) + "\n")

    def one(task: tuple[Path, int | None]) -> str:
        source, at = task
        if at is None:
            return f"{source.relative_to(root)}: does not compile as it is" if is_missed(source, None) else ""
        return "" if is_missed(source, at) else f"{source.relative_to(root)}:{at + 1}: this lock is not missed"

    tasks: list[tuple[Path, int | None]] = [(source, None) for source in sorted({source for source, _ in looked_at})]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        complaints = [line for line in pool.map(one, [*tasks, *looked_at]) if line]
    print(*complaints, sep="\n")
    print(f"{len(looked_at)} locks, {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
