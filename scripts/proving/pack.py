"""Fills a parcel: a folder with the layout of a checkout that has what the stages run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .layout import ABOUT, BUILD, PREBUILT, ROOT, SPARE, TESTS, Machine, UnusableError
from .listed import of_ctest, write

MOST_BYTES = 64 << 20  # of an archive
LIBRARIES = ("libspillway.so.0", "libspillway_preload.so", "libspillway_audit.so")
PROGRAMS = ("spillway", "driver_probe")
# These are read where they lie.
SOURCES = (
    *("scripts/prove", "scripts/proving", "python/spillway", "tests/python", "tests/preload", "tests/abi"),
    *("examples", "include", "sim", "abi/preload/hooks.inc", "docs/pytorch.md", "bench/pytorch"),
)
# Every Linux that PyTorch runs on has these, and a second C library in a process is none.
OF_THE_SYSTEM = re.compile(r"/(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl))\.so[.0-9]*$")
OF_THE_COMPILER = re.compile(r"/lib(stdc\+\+|gcc_s)\.so[.0-9]*$")
# PyTorch and the driver bring their own.
OF_OTHERS = re.compile(r"/lib(c10|torch|cuda|cudart)[^/]*\.so[.0-9]*$|/libspillway[^/]*$")


def copy_binary(file: Path, folder: Path) -> None:
    """Without what only a debugger reads."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / file.name
    shutil.copy2(file, target)  # what a link points to
    target.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", target], capture_output=True, check=False)


def copy_library(file: Path, folder: Path) -> None:
    """By all of its names."""
    real = file.resolve()
    copy_binary(real, folder)
    for name in (each.name for each in file.parent.iterdir() if each.is_symlink() and each.resolve() == real):
        (folder / name).symlink_to(real.name)


def libraries_of(files: Iterable[Path], folder: Path) -> list[Path]:
    """All that they are linked with, and those again, where this machine has them."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    found: set[Path] = set()
    for file in files:
        said = subprocess.run(["ldd", file], env=environment, capture_output=True, text=True, check=False).stdout
        found.update(Path(path) for path in re.findall(r"=> (/\S+)", said))
    return sorted(found)


def copy_closure(parcel: Path) -> None:
    libraries = parcel / BUILD / "lib"
    files = [*(parcel / BUILD / "bin").iterdir(), *libraries.glob("*.so*")]
    for library in libraries_of(files, libraries):
        if OF_THE_COMPILER.search(str(library)):
            copy_binary(library, libraries / SPARE)
        elif not OF_THE_SYSTEM.search(str(library)) and not OF_OTHERS.search(str(library)):
            copy_binary(library, libraries)


def copy_sources(parcel: Path) -> None:
    for name in SOURCES:
        source, target = ROOT / name, parcel / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def copy_extension(parcel: Path, build: Path, python: Path) -> str:
    """The library that PyTorch loads, for the release of PyTorch that `python` has: its compiler is not needed there.

    Answers for which one. The simulated device stands in for NVIDIA's libraries, which the build machine lacks.
    """
    machine = Machine(parcel, python, simulated=True)
    code = (
        "import torch\nfrom spillway._pytorch import build\n"
        "print(build.abi_tag(torch), build.extension(torch), sep='\\n')"
    )
    library = build / "lib" / machine.libspillway.name  # beside it a portable build has its own extension
    environment = machine.for_python(SPILLWAY_CACHE=str(build / "extension"), SPILLWAY_LIBRARY=str(library))
    done = subprocess.run([python, "-B", "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnusableError(f"the extension for PyTorch cannot be made: {done.stderr.strip().splitlines()[-1:]}")
    tag, file = done.stdout.splitlines()[-2:]
    copy_binary(Path(file), parcel / PREBUILT)
    (parcel / PREBUILT / Path(file).name).rename(parcel / PREBUILT / f"spillway_torch-{tag}.so")
    (parcel / PREBUILT / machine.libspillway.name).symlink_to(Path("..", "..", BUILD, "lib", machine.libspillway.name))
    return tag


def newest_needed(parcel: Path) -> dict[str, str]:
    """By library, its newest version that a program of the parcel asks for. Empty without objdump."""
    newest: dict[str, tuple[int, ...]] = {}
    files = (each for folder in (BUILD / "bin", BUILD / "lib", PREBUILT) for each in (parcel / folder).iterdir())
    for file in filter(Path.is_file, files):
        with contextlib.suppress(OSError):
            said = subprocess.run(["objdump", "-T", file], capture_output=True, text=True, check=False).stdout
            for name, version in re.findall(r"\*UND\*.*\b(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)\b", said):
                newest[name] = max(newest.get(name, ()), tuple(map(int, version.split("."))))
    return {name: ".".join(map(str, version)) for name, version in sorted(newest.items())}


def fill(parcel: Path, build: Path, python: Path) -> str:
    """Answers what a machine must have for it."""
    missing = [name for name in (*(f"lib/{each}" for each in LIBRARIES), "bin/spillway") if not (build / name).exists()]
    if missing:
        raise UnusableError(f"{build} has no {missing[0]}: build it first")
    tests = of_ctest(build, ROOT)
    write(tests, parcel / TESTS)
    for name in sorted({*PROGRAMS, *(test.program for test in tests if not test.is_python)}):
        copy_binary(build / "bin" / name, parcel / BUILD / "bin")
    for name in LIBRARIES:
        copy_library(build / "lib" / name, parcel / BUILD / "lib")
    for file in sorted((build / "lib" / "sim").glob("*.so.*")):
        copy_binary(file, parcel / BUILD / "lib" / "sim")
    shutil.copy2(build / "lib" / "sim" / "made_for", parcel / BUILD / "lib" / "sim")
    copy_closure(parcel)
    copy_sources(parcel)
    tag = copy_extension(parcel, build, python)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    needs = newest_needed(parcel)
    about = {"commit": commit.strip(), "pytorch": tag, "needs": needs, "tests": len(tests)}
    (parcel / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
    return f"it asks for GLIBC {needs.get('GLIBC', 'of this machine')} and PyTorch {tag}"


def archive(parcel: Path, file: Path) -> str:
    beside = file.with_name(f".{file.name}.part")
    is_gzip = file.name.endswith((".tar.gz", ".tgz"))
    with tarfile.open(beside, "w:gz") if is_gzip else tarfile.open(beside, "w:xz") as packed:
        packed.add(parcel, parcel.name)
    size = beside.stat().st_size
    if size > MOST_BYTES:
        beside.unlink()
        raise UnusableError(f"the parcel takes {size >> 20} MiB, more than {MOST_BYTES >> 20}")
    beside.replace(file)
    return f"{file}: {size / (1 << 20):.1f} MiB, unpacks as {parcel.name}/"


def pack(target: Path, build: Path, python: Path) -> str:
    """An archive where the name is one's, else a folder, which must not have anything in it. Answers what was made."""
    if target.name.endswith((".tar.xz", ".tar.gz", ".tgz")):
        with tempfile.TemporaryDirectory() as folder:
            parcel = Path(folder, "spillway")  # a temporary folder is its owner's alone, and unpacks so
            parcel.mkdir()
            asks = fill(parcel, build, python)
            return f"{archive(parcel, target)}; {asks}"
    if target.exists() and any(target.iterdir()):
        raise UnusableError(f"{target} is not empty")
    target.mkdir(parents=True, exist_ok=True)
    asks = fill(target.resolve(), build, python)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    return f"{target}: {size / (1 << 20):.1f} MiB; {asks}"
