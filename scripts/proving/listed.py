"""The tests that run on a GPU, as ctest knows them: what to call and in which environment, by any machine's paths."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .layout import BUILD, ROOT, TESTS, Machine, UnusableError

# These stand in a list for paths of the machine that made it.
ROOT_SIGN, PYTHON_SIGN = "{root}", "{python}"
# These are of the machine that built, and are found anew where the tests run.
OWN_PATHS = ("SPILLWAY_CUDA_INCLUDE", "SPILLWAY_CC", "SPILLWAY_NVCC", "SPILLWAY_CUDART", "SPILLWAY_LIBCUDA")
# They test how the extension is compiled, so none may be there.
COMPILING = ("python.install", "python.launch")


@dataclass(frozen=True)
class Test:
    name: str
    command: list[str]
    environment: dict[str, str]
    whole_gpu: bool = False  # nothing runs beside it

    @property
    def is_python(self) -> bool:
        return self.command[0] == PYTHON_SIGN

    @property
    def program(self) -> str:
        return Path(self.command[0]).name

    @property
    def case(self) -> str:
        """Of GoogleTest, whose names of parameters ctest has in its own words."""
        return next((word.partition("=")[2] for word in self.command if word.startswith("--gtest_filter=")), self.name)


def of_ctest(build: Path, root: Path) -> list[Test]:
    """Errors: UnusableError, where there is no build, or none that has tests."""
    try:
        said = subprocess.run(
            ["ctest", "--test-dir", build, "-L", "gpu", "--show-only=json-v1"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as problem:
        raise UnusableError(f"ctest lists no tests of {build}: {problem}") from None
    tests = [portable(entry, root, build) for entry in json.loads(said.stdout)["tests"] if "command" in entry]
    if not tests:
        raise UnusableError(
            f"{build} has no tests that are labelled gpu: configure with -DSPILLWAY_TESTS=ON and build them"
        )
    return tests


def portable(entry: Mapping[str, Any], root: Path, build: Path) -> Test:
    properties = {each["name"]: each["value"] for each in entry["properties"]}
    pairs = (pair.partition("=") for pair in properties.get("ENVIRONMENT", []))
    environment = {name: value for name, _, value in pairs if name not in OWN_PATHS}
    first, *rest = entry["command"]
    command = [PYTHON_SIGN if Path(first).name.startswith("python") else first, *rest]

    def without_paths(text: str) -> str:
        return text.replace(str(build), f"{ROOT_SIGN}/{BUILD}").replace(str(root), ROOT_SIGN)

    values = {name: without_paths(value) for name, value in environment.items()}
    whole_gpu = "whole_gpu" in properties.get("LABELS", [])
    return Test(entry["name"], [without_paths(word) for word in command], values, whole_gpu)


def write(tests: list[Test], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(test) for test in tests], indent=1) + "\n")


def gpu_tests(machine: Machine) -> list[Test]:
    kept = machine.root / TESTS
    if kept.exists():
        return [Test(**entry) for entry in json.loads(kept.read_text())]
    return of_ctest(machine.root / BUILD, ROOT)


def command_of(test: Test, machine: Machine) -> list[str]:
    signs = {ROOT_SIGN: str(machine.root), PYTHON_SIGN: str(machine.python)}
    return [filled(word, signs) for word in test.command]


def environment_of(test: Test, machine: Machine) -> dict[str, str]:
    """Those of Python find the simulated device themselves, where they are to (tests/python/on_device.py)."""
    values = machine.for_python() if test.is_python else machine.for_program()
    if test.is_python:
        for name in ("LD_PRELOAD", "SPILLWAY_SIM"):
            values.pop(name, None)
    signs = {ROOT_SIGN: str(machine.root)}
    values.update({name: filled(value, signs) for name, value in test.environment.items()})
    if test.is_python and test.name not in COMPILING:
        values["SPILLWAY_LIBRARY"] = str(machine.libspillway)
    if not machine.simulated:
        values["SPILLWAY_TEST_GPU"] = "1"
    for name, found in {"SPILLWAY_CC": shutil.which("cc"), "SPILLWAY_NVCC": nvcc()}.items():
        if found:
            values[name] = found
    if runtime := cuda_runtime(machine):
        values["SPILLWAY_CUDART"] = str(runtime)
    return values


def nvcc() -> str | None:
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def filled(text: str, signs: Mapping[str, str]) -> str:
    for sign, value in signs.items():
        text = text.replace(sign, value)
    return text


def cuda_runtime(machine: Machine) -> Path | None:
    if machine.simulated:
        return machine.stand_ins / "libcudart.so.13"
    packages = sorted(machine.python.parents[1].glob("lib/python3*/site-packages/nvidia/*/lib"))
    folders = [Path("/usr/local/cuda/lib64"), *packages]
    return next((file for folder in folders for file in sorted(folder.glob("libcudart.so.1[0-9]"))), None)
