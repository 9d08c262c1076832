"""Demands of the allocator's tests that they notice each missing wait.

Each mutant of mutants.py is built in a copy of the sources, and the tests of streams run on it. A mutant that no
test fails on is an error, and so is one whose text is not in the sources any more.

usage: mutation.py SOURCE WORK LIBCUDA CUDA_HEADERS [NAME_PART]
       mutation.py SOURCE     looks for the texts alone
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mutants import MUTANTS, Mutant

COPIED = (
    "CMakeLists.txt",
    "LICENSE",
    "cmake",
    "include",
    "driver",
    "stats",
    "allocator",
    "offload",
    "abi",
    "sim",
    "cli",
    "bench",
    "tests",
)
# Cheapest first: a mutant is dead after its first failed test.
PROGRAMS = (
    (
        "allocator_arena_test",
        "Streams.*:StreamIdentity.*:Pools.*:PoolStates.*:Captures.*:SourcesTest.*:MovesTest.*:Arena.WithoutVmm*",
    ),
    ("allocator_legacy_pool_test", "LegacyPoolTest.*"),
    ("allocator_random_test", "RandomStreams.*:RandomPoolStates.*"),
)
TEST_TIMEOUT_S = 300


def copy_sources(source: Path, to: Path) -> None:
    """Files that did not change keep their age, so that a second run builds only mutants."""
    wanted: set[Path] = set()
    for name in COPIED:
        root = source / name
        for file in [root] if root.is_file() else sorted(root.rglob("*")):
            if not file.is_file() or "__pycache__" in file.parts:
                continue
            copy = to / file.relative_to(source)
            wanted.add(copy)
            if copy.is_file() and copy.read_bytes() == file.read_bytes():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    for file in to.rglob("*"):
        if file.is_file() and file not in wanted:
            file.unlink()


def problem_of(mutant: Mutant, source: Path) -> str | None:
    count = (source / mutant.file).read_text().count(mutant.old)
    if count == 1:
        return None
    return f"{mutant.name}: its text occurs {count} times in {mutant.file}; once is needed"


class Workshop:
    """A copy of the sources, its build, and the simulated driver that tests run on."""

    targets = tuple(program for program, _ in PROGRAMS)

    def __init__(self, source: Path, work: Path, libcuda: Path, headers: Path) -> None:
        self.copy = work / "source"
        self.build_folder = work / "build"
        self.objects = self.build_folder / "allocator/CMakeFiles/spillway_allocator.dir"
        self.stale: set[Path] = set()  # built of a mutant
        self.environment = {**os.environ, "SPILLWAY_LIBCUDA": str(libcuda)}
        # What these are elsewhere makes programs longer, not sharper.
        for name in ("SPILLWAY_TEST_SEEDS", "SPILLWAY_TEST_STEPS", "SPILLWAY_TEST_THOROUGH"):
            self.environment.pop(name, None)
        # What an interrupted run left of its last mutant.
        shutil.rmtree(self.objects, ignore_errors=True)
        copy_sources(source, self.copy)
        configured = subprocess.run(
            ["cmake", "-S", str(self.copy), "-B", str(self.build_folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
             "-DCMAKE_CXX_FLAGS=-w", "-DCMAKE_CXX_FLAGS_DEBUG=-O0", "-DSPILLWAY_UNITY=OFF",
             f"-DSPILLWAY_CUDA_INCLUDE_DIR={headers}"],
            capture_output=True, text=True,
        )  # fmt: skip
        if configured.returncode != 0:
            sys.exit(f"error: cmake failed:\n{configured.stdout}{configured.stderr}")

    def build(self) -> str | None:
        """The compiler's complaint; None where there is none."""
        done = subprocess.run(
            ["cmake", "--build", str(self.build_folder), "--target", *self.targets], capture_output=True, text=True
        )
        return None if done.returncode == 0 else done.stdout

    def killer(self) -> str | None:
        """The first test that fails; None where all pass."""
        for program, chosen in PROGRAMS:
            command = [str(self.build_folder / "bin" / program), f"--gtest_filter={chosen}", "--gtest_fail_fast"]
            try:
                done = subprocess.run(
                    command, env=self.environment, capture_output=True, text=True, timeout=TEST_TIMEOUT_S
                )
            except subprocess.TimeoutExpired:
                return f"{program} (does not end)"
            if done.returncode == 0:
                continue
            begun: list[str] = re.findall(r"^\[ RUN +\] (\S+)", done.stdout, re.MULTILINE)
            failed = re.search(r"^\[  FAILED  \] (\S+) ", done.stdout, re.MULTILINE)
            if failed is not None:
                return failed.group(1)
            return f"{begun[-1] if begun else program} (ends with {done.returncode})"
        return None

    def result(self, mutant: Mutant) -> tuple[bool, str]:
        """Whether it died, and of what."""
        file = self.copy / mutant.file
        original = file.read_text()
        age = file.stat()
        # Only the allocator is built again, not the tests that include its headers: no mutant changes a layout.
        affected = file.name + ".o" if file.suffix == ".cpp" else "*.o"
        objects = set(self.objects.glob(affected))
        if not objects | self.stale:  # those of a mutant that does not build are not there
            sys.exit(f"error: {self.objects} has no {affected}: the mutant would not be built")
        for stale in self.stale | objects:
            stale.unlink(missing_ok=True)
        self.stale = objects
        try:
            file.write_text(original.replace(mutant.old, mutant.new))
            os.utime(file, ns=(age.st_atime_ns, age.st_mtime_ns))
            complaint = self.build()
            if complaint is not None:
                return False, f"does not build\n{complaint[-2000:]}"
            killer = self.killer()
            return killer is not None, killer or "SURVIVED"
        finally:
            file.write_text(original)
            os.utime(file, ns=(age.st_atime_ns, age.st_mtime_ns))


def has_problems(chosen: Sequence[Mutant], source: Path) -> bool:
    problems = [problem for mutant in chosen if (problem := problem_of(mutant, source)) is not None]
    for problem in problems:
        print(f"error: {problem}")
    return bool(problems)


def check(chosen: Sequence[Mutant], source: Path, open_workshop: Callable[[], Workshop]) -> int:
    """The exit code: 0 where every mutant is noticed."""
    if has_problems(chosen, source):
        return 1
    workshop = open_workshop()
    complaint = workshop.build()
    if complaint is not None:
        sys.exit(f"error: the sources do not build without a mutation:\n{complaint}")
    if (killer := workshop.killer()) is not None:
        sys.exit(f"error: {killer} fails without a mutation")
    failed = 0
    for mutant in chosen:
        started = time.monotonic()
        died, what = workshop.result(mutant)
        failed += not died
        print(f"{'' if died else 'error: '}{mutant.name}: {what} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} mutants were noticed")
    return 1 if failed else 0


def main() -> int:
    if len(sys.argv) == 2:
        return int(has_problems(MUTANTS, Path(sys.argv[1])))
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    source, work, libcuda, headers = (Path(argument).resolve() for argument in sys.argv[1:5])
    chosen = [mutant for mutant in MUTANTS if len(sys.argv) == 5 or sys.argv[5] in mutant.name]
    return check(chosen, source, lambda: Workshop(source, work, libcuda, headers))


if __name__ == "__main__":
    sys.exit(main())
