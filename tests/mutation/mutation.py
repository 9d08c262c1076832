"""Demands of the allocator's tests that they notice each missing wait.

Each mutant of mutants.py is built in a copy of the sources, and the tests of streams and waits run on it. A mutant that
no test fails on is an error, and so is one that does not fit the statements it marks.

usage: mutation.py SOURCE WORK LIBCUDA CUDA_HEADERS [NAME_PART]
       mutation.py SOURCE     asks only that markers and mutants fit each other
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import markers
from mutants import MUTANTS, Mutant
from statements import NotUnderstoodError

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
    ("allocator_parts_test", "PendingFrees*:Borrowing*:DeviceWaits*:StreamHeaps*:Trimming*:ViewBudget*:PoolMover*"),
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
        # An interrupted run may have left these of its last mutant.
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
        mutated = markers.mutated_files(mutant.edits, markers.find(self.copy))
        originals = {file: file.read_text() for file in mutated}
        ages = {file: file.stat() for file in mutated}
        self.remove_objects_of(mutated)
        try:
            for file, text in mutated.items():
                write_as_old(file, text, ages[file])
            complaint = self.build()
            if complaint is not None:
                return False, f"does not build\n{complaint[-2000:]}"
            killer = self.killer()
            return killer is not None, killer or "SURVIVED"
        finally:
            for file, text in originals.items():
                write_as_old(file, text, ages[file])

    def remove_objects_of(self, files: Iterable[Path]) -> None:
        """Only the allocator is built again, not the tests that include its headers: no mutant changes a layout."""
        objects: set[Path] = set()
        for file in files:
            affected = file.name + ".o" if file.suffix == ".cpp" else "*.o"
            found = set(self.objects.glob(affected))
            if not found | self.stale:  # those of a mutant that does not build are not there
                sys.exit(f"error: {self.objects} has no {affected}: the mutant would not be built")
            objects |= found
        for stale in self.stale | objects:
            stale.unlink(missing_ok=True)
        self.stale = objects


def write_as_old(file: Path, text: str, age: os.stat_result) -> None:
    file.write_text(text)
    os.utime(file, ns=(age.st_atime_ns, age.st_mtime_ns))


def problems_of(mutants: Sequence[Mutant], source: Path) -> list[str]:
    places = markers.find(source)
    problems = [f"marker {name} occurs {len(files)} times" for name, files in places.items() if len(files) != 1]
    named = {marker for mutant in MUTANTS for marker in mutant.edits}
    problems += [f"marker {name} is named by no mutant" for name in sorted(set(places) - named)]
    for mutant in mutants:
        absent = [name for name in mutant.edits if name not in places]
        problems += [f"{mutant.name}: marker {name} is not in allocator/" for name in absent]
        if absent or any(len(places[name]) != 1 for name in mutant.edits):
            continue
        try:
            markers.mutated_files(mutant.edits, places)
        except NotUnderstoodError as error:
            problems.append(f"{mutant.name}: {error}")
    return problems


def has_problems(chosen: Sequence[Mutant], source: Path) -> bool:
    problems = problems_of(chosen, source)
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
