"""The checks of scripts/lint. Prints each complaint, then "N passed, M failed" (per file and check).

clang-tidy walks all that a source includes, the system's headers too, which takes most of its time. So sources are
checked as the build compiles them, several in one unit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "lint"
TIDY = BUILD / "tidy"  # the compile commands as clang can read them
# Makes clang check which lock guards what, as stats/lock.h declares it.
LOCKS = "--extra-arg=-Wthread-safety"
# Remembers what passed, by name: shared by all checkouts, as a compiler's cache is.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spillway-lint" / "passed.json"
KEPT = 8  # of each unit
GCC_ONLY = re.compile(r" -fno-gnu-unique\b")  # a flag that clang refuses
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def tracked(*patterns: str) -> list[Path]:
    """Files of the project, new ones included, without what git ignores."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted({ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()})


def tool(name: str) -> str:
    """Version 14 is what the oldest supported distributions have; another version would judge differently."""
    found = shutil.which(f"{name}-14") or shutil.which(name)
    if found is None:
        sys.exit(f"error: {name}-14 was not found; install the packages of scripts/packages-test.txt")
    return found


def closure(source: Path, seen: set[Path]) -> None:
    """Collects the file and every header of the project that it includes, however far away."""
    if source in seen:
        return
    seen.add(source)
    for name in INCLUDE.findall(source.read_text(errors="replace")):
        for folder in (ROOT, ROOT / "include", source.parent):
            if (folder / name).is_file():
                closure((folder / name).resolve(), seen)
                break


class Unit(NamedTuple):
    """What clang-tidy is asked to check at once: a file of the build that includes some sources, or one of them."""

    file: Path
    command: str
    sources: tuple[Path, ...]

    @property
    def name(self) -> str:
        return str(self.file.relative_to(BUILD if BUILD in self.file.parents else ROOT))

    @property
    def is_shipped(self) -> bool:
        return all(source.relative_to(ROOT).parts[0] not in ("tests", "bench") for source in self.sources)


def units_of(entries: list[dict[str, str]], wanted: set[Path]) -> list[Unit]:
    """Units that have all the wanted sources, none without a new one, the longest first."""
    units = {}
    for entry in reversed(entries):
        file = Path(entry["file"]).resolve()
        is_joined = file.parent.name == "Unity"
        included = [Path(name).resolve() for name in INCLUDE.findall(file.read_text())] if is_joined else [file]
        units[file] = Unit(file, entry["command"], tuple(source for source in included if source in wanted))
    chosen, seen = [], set[Path]()
    for unit in sorted(units.values(), key=lambda unit: (-len(unit.sources), unit.name)):
        if not seen.issuperset(unit.sources):
            chosen.append(unit)
            seen.update(unit.sources)
    return chosen


def fingerprint(unit: Unit, command: str) -> str:
    files: set[Path] = set()
    for source in unit.sources:
        closure(source, files)
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes() + command.replace(str(ROOT), ".").encode())
    for file in sorted(files):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def run(command: list[str]) -> tuple[bool, str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + (done.stderr if done.returncode else "")


def check_format(files: list[Path], fix: bool) -> list[str]:
    formatter = tool("clang-format")
    if fix:
        subprocess.run([formatter, "-i", *map(str, files)], check=True)
        return []
    failed = []
    for file in files:
        ok, output = run([formatter, "--dry-run", "-Werror", str(file)])
        if not ok:
            failed.append(f"{file.relative_to(ROOT)}: clang-format (scripts/lint --fix reformats)")
            print("\n".join(output.splitlines()[:6]))
    return failed


def checks(unit: Unit, deep: bool) -> list[str]:
    """Arguments of clang-tidy. The path-sensitive analyzer takes most of the time, and finds least in tests."""
    return [LOCKS] if deep and unit.is_shipped else [LOCKS, "--checks=-clang-analyzer-*"]


def read_cache() -> dict[str, list[str]]:
    try:
        return dict(json.loads(CACHE.read_text()))
    except (OSError, ValueError):
        return {}


def write_cache(passed: dict[str, list[str]]) -> None:
    """Whole or not at all; a machine that gives it no place checks everything each time."""
    part = CACHE.with_suffix(f".{os.getpid()}")
    try:
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(passed, indent=0, sort_keys=True))
        part.rename(CACHE)
    except OSError:
        return


def check_tidy(deep: bool) -> tuple[int, list[str]]:
    """clang-tidy on every source that the release build compiles, those of tests and benchmarks where it is deep."""
    tidy = tool("clang-tidy")
    entries = json.loads(GCC_ONLY.sub("", (BUILD / "compile_commands.json").read_text()))
    units = [unit for unit in units_of(entries, set(tracked("*.cpp"))) if deep or unit.is_shipped]
    TIDY.mkdir(exist_ok=True)
    commands = [{"directory": str(BUILD), "file": str(unit.file), "command": unit.command} for unit in units]
    (TIDY / "compile_commands.json").write_text(json.dumps(commands))
    version = run([tidy, "--version"])[1]
    passed = read_cache()
    marks = {unit: fingerprint(unit, " ".join([version, unit.command, *checks(unit, deep)])) for unit in units}
    pending = [unit for unit in units if marks[unit] not in passed.get(unit.name, [])]

    def one(unit: Unit) -> tuple[Unit, bool, str]:
        ok, output = run([tidy, "--quiet", *checks(unit, deep), "-p", str(TIDY), str(unit.file)])
        return unit, ok, output

    failed = []
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for unit, ok, output in pool.map(one, pending):
            if ok:
                passed[unit.name] = [*passed.get(unit.name, []), marks[unit]][-KEPT:]
                write_cache(passed)  # who ends it goes on from here
                continue
            print(output)
            named = [source for source in unit.sources if f"{source}:" in output] or [unit.file]
            failed += [f"{source.relative_to(ROOT)}: clang-tidy" for source in named]
    return sum(len(unit.sources) for unit in units), failed


def check_python(fix: bool) -> tuple[int, list[str]]:
    files = [str(file.relative_to(ROOT)) for file in tracked("*.py")]
    if not files:
        return 0, []
    tools = Path(sys.executable).parent
    format_check = [] if fix else ["--check"]
    steps = {
        "ruff check": [str(tools / "ruff"), "check", "--quiet", *(["--fix"] if fix else []), *files],
        "ruff format": [str(tools / "ruff"), "format", "--quiet", *format_check, *files],
        "mypy": [str(tools / "mypy"), "--no-error-summary", *files],
    }
    failed = []
    for name, command in steps.items():
        ok, output = run(command)
        if not ok:
            failed.append(name)
            print(output)
    return len(steps), failed


def main() -> int:
    fix = "--fix" in sys.argv[1:]
    sources = tracked("*.cpp", "*.h", "*.hpp", "*.c")
    python_count, python_failed = check_python(fix)
    failed = check_format(sources, fix) + python_failed
    count = len(sources) + python_count
    if not fix:
        tidy_count, tidy_failed = check_tidy(deep="--deep" in sys.argv[1:])
        count += tidy_count
        failed += tidy_failed
    for complaint in failed:
        print(f"lint: {complaint}")
    print(f"{count - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
