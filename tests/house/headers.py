"""What a build includes is what a fresh machine has: every header that its dependency files name comes from the
project, from a wheel that the scripts pin, or from a Debian package that scripts/packages.txt lists or that such a
package needs; what is built for tests and benchmarks may also take from scripts/packages-test.txt.

Reads what ninja recorded of a finished build. Where there is no dpkg, packages cannot be told apart, and a header of
the system is refused only below /usr/local. With --self-test it checks itself, on headers that break each rule.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

LISTS = {False: ("scripts/packages.txt",), True: ("scripts/packages.txt", "scripts/packages-test.txt")}  # for tests?
FOR_TESTS = ("tests/", "bench/")  # how an output begins that is built for them
# scripts/lib.sh and pyproject.toml pin these, in whatever environment it lies.
PINNED = re.compile(r"/((cuda|cccl)-headers/nvidia/cu13|site-packages/(nvidia/cu13|torch))/")


def recorded_headers(ninja: str, build: Path) -> dict[bool, set[Path]]:
    """Of what is built for tests, and of the rest. Errors: SystemExit, where the build recorded nothing."""
    listing = subprocess.run([ninja, "-C", str(build), "-t", "deps"], capture_output=True, text=True, check=True).stdout
    files: dict[bool, set[str]] = {False: set(), True: set()}
    for_tests = False
    for line in listing.splitlines():
        # An entry is a line for its output and then an indented line for each file.
        if line.startswith("    "):
            files[for_tests].add(line.strip())
        elif line:
            for_tests = line.startswith(FOR_TESTS)
    if not files[False]:
        sys.exit(f"error: {build} recorded no dependencies; build it first")
    return {key: {Path(os.path.normpath(build / file)) for file in found} for key, found in files.items()}


def listed_packages(root: Path, for_tests: bool) -> set[str]:
    return {
        line
        for name in LISTS[for_tests]
        for line in map(str.strip, (root / name).read_text().splitlines())
        if line and not line.startswith("#")
    }


def installed_packages() -> Iterator[tuple[str, set[str], set[str]]]:
    """Name, what it provides, and what it needs: of alternatives each, for which one is installed is not recorded."""
    form = "${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n"
    listing = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        name, provides, needs = line.split("\t")
        yield name, names_in(provides), names_in(needs)


def names_in(relations: str) -> set[str]:
    return {word.split()[0].split(":")[0] for word in re.split(r"[,|]", relations) if word.strip()}


def closure(listed: Iterable[str], packages: Iterable[tuple[str, set[str], set[str]]]) -> set[str]:
    """The packages of the list and everything that they need."""
    needs: dict[str, set[str]] = {}
    providers: dict[str, set[str]] = {}
    for name, provides, needed in packages:
        needs.setdefault(name, set()).update(needed)
        for provided in {name, *provides}:
            providers.setdefault(provided, set()).add(name)
    reached: set[str] = set()
    pending = set(listed)
    while pending:
        for name in providers.get(pending.pop(), set()) - reached:
            reached.add(name)
            pending |= needs[name]
    return reached


def owners(headers: Iterable[Path]) -> dict[Path, set[str]]:
    """By dpkg, which knows a file by the path that its package has: /usr/include, not /usr/lib's way to it."""
    found: dict[Path, set[str]] = {}
    words = sorted(map(str, headers))
    done = subprocess.run(["dpkg-query", "-S", *words], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        names, _, path = line.rpartition(": ")
        found[Path(path)] = names_in(names)
    return found


def complaints(
    headers: Iterable[Path], own: Iterable[Path], owned_by: Mapping[Path, set[str]] | None, allowed: set[str]
) -> list[str]:
    """`own`: folders of the project. `owned_by`: None where packages are not known."""
    found = []
    for header in sorted(headers):
        if PINNED.search(str(header)):
            continue
        if ".venv" in header.parts:
            found.append(f"{header} is of no wheel that is pinned")
        elif any(folder in header.parents for folder in own):
            continue
        elif Path("/usr/local") in header.parents:
            found.append(f"{header} is below /usr/local, which a fresh machine does not have")
        elif owned_by is not None and not (packages := owned_by.get(header, set())):
            found.append(f"{header} belongs to no package")
        elif owned_by is not None and not packages & allowed:
            names = ", ".join(sorted(packages))
            found.append(f"{header} is of {names}, which no list of packages brings")
    return found


def self_test() -> list[str]:
    project, headers = Path("/p"), Path("/usr/include")
    packages = [
        ("g++", set[str](), {"libc-dev"}),
        ("libc6-dev", {"libc-dev"}, set[str]()),
        ("stray", set[str](), set()),
    ]
    allowed = closure({"g++"}, packages)
    owned = {headers / "stdio.h": {"libc6-dev"}, headers / "stray.h": {"stray"}}
    cases = [
        (project / "a.h", 0),
        (Path("/p/.venv/cuda-headers/nvidia/cu13/include/cuda.h"), 0),
        (Path("/opt/v/lib/python3.11/site-packages/torch/include/c10/c10.h"), 0),
        (Path("/p/.venv/lib/python3.11/site-packages/other/other.h"), 1),
        (headers / "stdio.h", 0),
        (headers / "stray.h", 1),
        (headers / "nobody.h", 1),
        (Path("/usr/local/include/cudaProfiler.h"), 1),
        (Path("/usr/local/cuda-13.0/include/cuda.h"), 1),
    ]
    wrong = [f"{header}: {count} expected" for header, count in cases
             if len(complaints([header], [project], owned, allowed)) != count]  # fmt: skip
    if complaints([headers / "stray.h"], [project], None, set()):
        wrong.append("where packages are not known, only /usr/local is refused")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--ninja", default="ninja")
    parser.add_argument("root", nargs="?", type=Path)
    parser.add_argument("build", nargs="?", type=Path)
    choices = parser.parse_args()
    if choices.self_test:
        found = self_test()
    else:
        root, build = choices.root.resolve(), choices.build.resolve()
        own = [root, build]
        found = []
        for for_tests, headers in recorded_headers(choices.ninja, build).items():
            if shutil.which("dpkg-query") is None:
                found += complaints(headers, own, None, set())
                continue
            system = [header for header in headers if not any(folder in header.parents for folder in own)]
            allowed = closure(listed_packages(root, for_tests), installed_packages())
            found += complaints(headers, own, owners(system), allowed)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
