"""Where things lie in a checkout and in a parcel, and what programs of either are told by their environment."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path("build", "release")
PREBUILT = Path("build", "prebuilt")
TESTS = Path("build", "tests.json")  # of the parcel: what ctest would run on a GPU
ABOUT = Path("build", "parcel.json")  # of the parcel: what it was made from
# This folder holds those of the build machine, for one whose own are too old for the programs.
SPARE = "spare"
SIMULATED_DEVICE = "capacity:8GiB,races:off,vmm_in_capture:allow"
MINE = ("SPILLWAY_", "LD_PRELOAD", "PYTHONPATH")


class UnusableError(Exception):
    """What the user gave or has cannot be used; the text says what is needed instead."""


@dataclass(frozen=True)
class Machine:
    """Where the stages run: a checkout or a parcel, a Python with PyTorch, a GPU or the simulated device."""

    root: Path
    python: Path
    simulated: bool

    @property
    def programs(self) -> Path:
        return self.root / BUILD / "bin"

    @property
    def libraries(self) -> Path:
        return self.root / BUILD / "lib"

    @property
    def libspillway(self) -> Path:
        """In a parcel, one that has PyTorch's extension beside it (PREBUILT): the package looks there first."""
        prebuilt = self.root / PREBUILT / "libspillway.so.0"
        return prebuilt if prebuilt.exists() else self.libraries / "libspillway.so.0"

    @property
    def preload(self) -> Path:
        return self.libraries / "libspillway_preload.so"

    @property
    def stand_ins(self) -> Path:
        return self.libraries / "sim"

    def for_device(self) -> dict[str, str]:
        """What every program is told: the device it runs on, and nothing that the caller's shell says of Spillway."""
        values = {name: value for name, value in os.environ.items() if not name.startswith(MINE)}
        if self.simulated:
            values["SPILLWAY_LIBCUDA"] = str(self.stand_ins / "libcuda.so.1")
            values["SPILLWAY_SIM"] = SIMULATED_DEVICE
        else:
            values["SPILLWAY_TEST_GPU"] = "1"
        return values

    def for_program(self) -> dict[str, str]:
        """Its libraries first, then where this machine may have its driver."""
        values = self.for_device()
        folders = [self.libraries, *spare_folders(self.programs / "driver_probe", self.libraries)]
        theirs = filter(None, [values.get("LD_LIBRARY_PATH", "")])
        return {**values, "LD_LIBRARY_PATH": ":".join([*map(str, folders), *theirs])}

    def for_python(self, *preload: Path, **more: str) -> dict[str, str]:
        values = {
            **self.for_device(),
            "PYTHONPATH": os.pathsep.join(map(str, (self.root / "python", self.root / "tests" / "python"))),
            "SPILLWAY_LIBRARY": str(self.libspillway),
            "SPILLWAY_COMMAND": str(self.programs / "spillway"),
            "SPILLWAY_BUILD": str(self.root / BUILD),
            "SPILLWAY_CACHE": str(self.root / BUILD / "extension"),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS is not deterministic
        }
        if headers := cuda_headers(self.root):
            values["SPILLWAY_CUDA_INCLUDE"] = str(headers)
        first = [*preload, *(sorted(self.stand_ins.glob("*.so.*")) if self.simulated else [])]
        if first:
            values["LD_PRELOAD"] = ":".join(map(str, first))
        return {**values, **more}


def starts(program: Path, folders: list[Path]) -> bool:
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}
    try:
        done = subprocess.run([program, "--help"], env=environment, capture_output=True, timeout=60, check=False)
    except OSError:
        return False
    return done.returncode == 0


@functools.cache
def spare_folders(program: Path, libraries: Path) -> list[Path]:
    """The spare C++ library, where programs start with it and not without."""
    spare = libraries / SPARE
    if not spare.is_dir() or starts(program, [libraries]):
        return []
    return [spare] if starts(program, [libraries, spare]) else []


def cuda_headers(root: Path) -> Path | None:
    named = os.environ.get("SPILLWAY_CUDA_INCLUDE", "")
    places: list[str | Path] = [named, root / ".venv/cuda-headers/nvidia/cu13/include", "/usr/local/cuda/include"]
    return next((Path(each) for each in places if each and Path(each, "cuda_runtime_api.h").exists()), None)


def has_torch(python: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, timeout=60, check=False).returncode == 0
    except OSError:
        return False


def find_python(named: str | None, root: Path) -> Path:
    """Of the user's choice, or the first that has PyTorch. Errors: UnusableError."""
    for each in [named] if named else [sys.executable, str(root / ".venv/bin/python"), "python3"]:
        found = shutil.which(each)
        if found and has_torch(found):
            return Path(found)  # not resolved: an environment's Python is known by its own path
    raise UnusableError(f"{named or 'no Python here'} has no PyTorch; name one that has with --python")
