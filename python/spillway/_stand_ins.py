"""Stand-ins for NVIDIA's libraries that fit a Python's PyTorch: those that were built, or made once and kept.

The command `spillway stand-ins` prints what folder() answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from . import _cache
from ._errors import SpillwayError
from ._library import CHECKOUT

CUDAS = ("12", "13")  # of the simulated runtimes
OLDEST = (2, 9)  # the first release that was tried
# Of those that were built, these serve every PyTorch.
FOR_ALL = ("libcuda.so.1", "libnvidia-ml.so.1", "libspillway_nccl.so.0")


def folder(built: Path) -> Path:
    """All simulated CUDA libraries for this Python's PyTorch: `built`, or a folder of the cache.

    `built` holds the simulated device, and perhaps stand-ins for one PyTorch. Errors: SpillwayError, when they cannot
    be made, or nothing would help.
    """
    made_for = built / "made_for"
    spec = find_spec("torch")
    torch = None if spec is None or spec.origin is None else Path(spec.origin).parent
    if torch is None or not (torch / "version.py").exists():
        if made_for.exists():  # the program may have its PyTorch elsewhere
            return built
        raise SpillwayError(f"PyTorch is not installed for {sys.executable}, so its libraries cannot be simulated")
    cuda = cuda_of(torch / "version.py")
    version = (torch / "version.py").read_bytes()
    if made_for.exists() and made_for.read_bytes() == version:
        return built
    maker = find_maker(built)
    sources = sorted(file for file in maker.parent.rglob("*") if file.suffix in (".py", ".c", ".h"))
    key = hashlib.sha256(b"\0".join([str(torch).encode(), version]))
    for file in [*sources, *sorted(built.rglob("*.so.*"))]:
        key.update(file.read_bytes())
    name = f"simulated-{key.hexdigest()[:16]}"
    return _cache.find(name) or make(maker, torch, cuda, built, name)


def cuda_of(version: Path) -> str:
    """The major version that this PyTorch was built for."""
    named = runpy.run_path(str(version))
    release, cuda = named["__version__"], named["cuda"]
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise SpillwayError(f"PyTorch {release} is too old for the simulated device: upgrade to {oldest} or later")
    if cuda is None or cuda.split(".")[0] not in CUDAS:
        has = "without CUDA" if cuda is None else f"for CUDA {cuda}"
        raise SpillwayError(
            f"PyTorch {release} is built {has}, and the simulated device has CUDA {' and '.join(CUDAS)}: install a "
            f"PyTorch for one of them (https://pytorch.org/get-started)"
        )
    major: str = cuda.split(".")[0]
    return major


def find_maker(built: Path) -> Path:
    """In the wheel, or in a checkout."""
    for place in (built / "libraries", CHECKOUT / "sim" / "libraries"):
        if (place / "make_libraries.py").exists():
            return place / "make_libraries.py"
    raise SpillwayError(f"{built} lacks libraries/make_libraries.py; install Spillway again")


def compiler() -> list[str]:
    named = os.environ.get("CC")
    for candidate in [named] if named else ["cc", "gcc", "clang"]:
        words = candidate.split()
        if words and shutil.which(words[0]) is not None and shutil.which("nm") is not None:
            return words
    raise SpillwayError("a C compiler and nm are needed to simulate CUDA's libraries: install gcc and binutils")


def make(maker: Path, torch: Path, cuda: str, built: Path, name: str) -> Path:
    """Whole or not at all, whoever else makes them now."""
    words = compiler()
    cache = _cache.writable_folder()
    target = cache / name
    with _cache.work_folder(cache) as work:
        made = work / "made"
        made.mkdir()
        runtime = f"libcudart.so.{cuda}"
        beside = built / runtime
        for file in [
            *(built / each for each in FOR_ALL),
            beside if beside.exists() else built / f"cuda{cuda}" / runtime,
        ]:
            shutil.copy2(file, made)
        places = [
            "--torch",
            str(torch),
            "--cuda",
            cuda,
            "--built",
            str(made),
            "--output",
            str(made),
            "--work",
            f"{work}/sources",
        ]
        done = subprocess.run(
            [sys.executable, str(maker), *places, "--refuse-unknown", "--cc", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SpillwayError((done.stderr.strip().splitlines() or ["the simulated libraries were not made"])[-1])
        try:
            os.rename(made, target)
        except OSError:
            if not target.exists():  # else another process was first
                raise
    return target


def nameable(path: Path) -> Path:
    """The folder by a path that LD_PRELOAD can name, which takes spaces and colons for ends: through a link in the
    cache, if need be."""
    if not re.search(r"[\s:;]", str(path)):
        return path
    name = f"link-{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if kept := _cache.find(name):
        return kept
    link = _cache.writable_folder() / name
    with contextlib.suppress(FileExistsError):
        link.symlink_to(path)
    return link


def main(built: str) -> None:
    """For the command, which reads the last line: the folder, or what is wrong."""
    try:
        print(nameable(folder(Path(built))))
    except SpillwayError as problem:
        print(problem)
        sys.exit(1)
