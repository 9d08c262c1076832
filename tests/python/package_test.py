"""The wheel works by itself: built once, installed into environments of its own, with nothing of the checkout in reach.

The environment names the build's folder (SPILLWAY_BUILD). Needs no network: PyTorch and what builds the wheel come from
the environment that runs the test.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["SPILLWAY_BUILD"])
TORCH = Path(torch.__path__[0])
OURS = ("SPILLWAY_", "LD_PRELOAD", "PYTHONPATH", "SKBUILD_")
SAME = ("CMAKE_C_COMPILER", "CMAKE_CXX_COMPILER", "CMAKE_C_FLAGS_RELWITHDEBINFO", "CMAKE_CXX_FLAGS_RELWITHDEBINFO")
OTHER_PYTHONS = [f"3.{minor}" for minor in range(10, 15) if minor != sys.version_info.minor]

TRAIN = """
import spillway, torch
model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(2, 8, 64, device="cuda")).square().mean().backward()
optimizer.step()
peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"]
print(spillway.__file__, spillway.installed().mode, torch.cuda.get_allocator_backend(), peak > 1 << 20)
"""


def clean(**environment: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**kept, **environment}


def run(words: list[Any], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, check=False, cwd="/")


def build_wheel(folder: str) -> Path:
    """With the compiler and the flags of the build under test, and beside it, so that the compiler's cache has most of
    it; not tuned for speed, which takes minutes."""
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE))
    defined = {
        **{name: cache[name] for name in SAME},
        "SPILLWAY_CUDA_INCLUDE_DIR": os.environ["SPILLWAY_CUDA_INCLUDE"],
        "SPILLWAY_TORCH_DIR": str(TORCH),
        "SPILLWAY_TUNED": "OFF",
        "SPILLWAY_PORTABLE": "ON",
    }
    environment = clean(
        SKBUILD_BUILD_DIR=str(BUILD.with_name(f"{BUILD.name}-wheel")),
        SKBUILD_CMAKE_DEFINE=";".join(f"{name}={value}" for name, value in defined.items()),
    )
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder]
    done = run([sys.executable, "-m", "pip", "wheel", *options, SOURCE], environment)
    if done.returncode != 0:
        raise AssertionError(f"the wheel was not built:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


def other_pythons() -> dict[str, str]:
    """By version, of those that this machine has and that are not the test's own."""
    found = {}
    for version in OTHER_PYTHONS:
        named = shutil.which(f"python{version}")
        of_pyenv = sorted(glob.glob(str(Path.home() / ".pyenv" / "versions" / f"{version}.*" / "bin" / "python")))
        for candidate in [*([named] if named else []), *of_pyenv]:
            # A shim of pyenv's may be there for a version that is not chosen, and a Python may lack venv.
            if run([candidate, "-c", "import ensurepip, venv"], clean()).returncode == 0:
                found[version] = candidate
                break
    return found


class Environment:
    """A virtual environment with the wheel in it."""

    def __init__(self, python: str, folder: Path, wheel: Path) -> None:
        self.folder = folder
        for words in (
            [python, "-m", "venv", folder],
            [folder / "bin" / "python", "-m", "pip", "install", "--no-deps", "--no-index", wheel],
        ):
            done = run(words, clean())
            if done.returncode != 0:
                raise AssertionError(f"{words}:\n{done.stdout}{done.stderr}")
        (self.packages,) = folder.glob("lib/python3*/site-packages")
        self.package = self.packages / "spillway"

    def run(self, *words: Any, **environment: str) -> subprocess.CompletedProcess[str]:
        """Words that begin with a program of this environment."""
        own = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return run([self.folder / "bin" / words[0], *words[1:]], clean(**{"PATH": own, **environment}))


class Package(unittest.TestCase):
    work: tempfile.TemporaryDirectory[str]
    wheel: Path
    own: Environment

    @classmethod
    def setUpClass(cls) -> None:
        cls.work = tempfile.TemporaryDirectory()
        cls.wheel = build_wheel(cls.work.name)
        # People keep environments in folders with spaces, which LD_PRELOAD takes for ends.
        cls.own = Environment(sys.executable, Path(cls.work.name) / "an environment", cls.wheel)
        (cls.own.packages / "torch_of_the_test.pth").write_text(f"{TORCH.parent}\n")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.work.cleanup()

    def test_a_training_step_on_what_is_prebuilt(self) -> None:
        """No compiler is in reach, and nothing is kept but a link to a path without spaces: what serves came with the
        wheel."""
        tools = Path(self.work.name) / "tools"
        tools.mkdir()
        (tools / "python").symlink_to(self.own.folder / "bin" / "python")
        (tools / "sh").symlink_to("/bin/sh")
        script = Path(self.work.name) / "train.py"
        script.write_text(TRAIN)
        done = self.own.run(
            *("spillway", "dryrun", "--gpu-memory", "1GiB", "--", self.own.folder / "bin" / "python", script),
            PATH=str(tools),
            SPILLWAY_CACHE=str(Path(self.work.name) / "links"),
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.strip(), f"{self.own.package / '__init__.py'} full spillway True")
        links = Path(self.work.name) / "links"
        # PyTorch makes the folder of what it compiles before it compiles anything.
        kept = [each for each in links.iterdir() if each.name != "compiled"]
        self.assertEqual([each.is_symlink() for each in kept], [True])
        self.assertEqual([each for each in (links / "compiled").rglob("*") if each.is_file()], [])

    def test_what_cannot_be_preloaded_is_refused(self) -> None:
        done = self.own.run("spillway", "run", "--preload", "--", "true")
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertIn("a space", done.stderr)

    def test_as_a_module(self) -> None:
        done = self.own.run("python", "-m", "spillway", "--version")
        self.assertEqual((done.returncode, done.stdout), (0, "spillway 0.1.0\n"), done.stderr)

    def test_it_needs_no_newer_library_than_it_says(self) -> None:
        """And shows none of what stands for newer functions, which would take the place of the machine's own."""
        newest = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
        libraries = [*self.own.package.glob("lib/*.so*"), *self.own.package.glob("lib/sim/*.so.*")]
        for file in [self.own.package / "bin" / "spillway", *libraries]:
            with self.subTest(file.name):
                # What it needs; what it defines, as the preload library does for dlsym, stands before.
                versions = run(["readelf", "-V", file], clean()).stdout.partition("Version needs section")[2]
                for family, version in set(re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)", versions)):
                    self.assertLessEqual(tuple(map(int, version.split("."))), newest[family])
                shown = run(["nm", "-D", "--defined-only", file], clean()).stdout
                self.assertNotRegex(shown, r" (stat|gettid|arc4random|pthread_cond_clockwait|__libc_single_threaded)\b")

    def test_it_needs_no_library_that_another_machine_may_lack(self) -> None:
        """What every Linux with glibc has: the C and the C++ library. The simulated libraries need each other."""
        everywhere = r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so\.\d+|ld-linux-x86-64\.so\.2|libspillway\.so\.0"
        for file in [self.own.package / "bin" / "spillway", *self.own.package.glob("lib/libspillway*")]:
            with self.subTest(file.name):
                dynamic = run(["readelf", "-d", file], clean()).stdout
                needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
                self.assertEqual([name for name in needed if not re.fullmatch(everywhere, name)], [])

    def test_without_what_is_prebuilt_it_is_compiled_once(self) -> None:
        """As under a PyTorch that the wheel was not built for: the extension and the stand-ins of CUDA's libraries."""
        aside = Path(self.work.name) / "prebuilt"
        aside.mkdir()
        prebuilt = [*self.own.package.glob("lib/spillway_torch-*.so"), self.own.package / "lib/sim/made_for"]
        self.assertEqual(len(prebuilt), 2)
        cache = Path(self.work.name) / "cache"
        script = Path(self.work.name) / "compiled.py"
        script.write_text(TRAIN)
        words = ["spillway", "dryrun", "--gpu-memory", "1GiB", "--", self.own.folder / "bin" / "python", script]
        headers = {"SPILLWAY_CUDA_INCLUDE": os.environ["SPILLWAY_CUDA_INCLUDE"]}
        for file in prebuilt:
            file.rename(aside / file.name)
        try:
            for environment in (headers, {"CXX": "/nowhere/c++", "CC": "/nowhere/cc"}):
                done = self.own.run(*words, SPILLWAY_CACHE=str(cache), **environment)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("full spillway True", done.stdout)
        finally:
            for file in prebuilt:
                (aside / file.name).rename(file)

    def test_what_is_in_it(self) -> None:
        names = set(zipfile.ZipFile(self.wheel).namelist())
        for name in (
            "py.typed",
            "include/spillway/spillway.h",
            "lib/libspillway.so.0",
            "lib/libspillway_preload.so",
            f"lib/spillway_torch-{torch.__version__}-abi1.so",
            "lib/sim/libcuda.so.1",
            "lib/sim/made_for",
            "bin/spillway",
            "bin/driver_probe",
        ):
            self.assertIn(f"spillway/{name}", names)
        self.assertIn("pytest_spillway/__init__.py", names)
        strangers = {name for name in names if not name.startswith(("spillway/", "pytest_spillway/", "spillway-"))}
        self.assertEqual(strangers, set())
        self.assertTrue(self.wheel.name.startswith("spillway-") and "-py3-none-" in self.wheel.name, self.wheel.name)

    def test_under_every_python_of_this_machine(self) -> None:
        """They have no PyTorch, which is one clear line; the command works. --long: all, else first and last."""
        pythons = other_pythons()
        if absent := [version for version in OTHER_PYTHONS if version not in pythons]:
            print(f"not on this machine, so not tried: Python {', '.join(absent)}", file=sys.stderr)
        tried = [*pythons.items()]
        if len(tried) > 2 and "SPILLWAY_TEST_THOROUGH" not in os.environ:
            tried = [tried[0], tried[-1]]
        for version, python in tried:
            with self.subTest(version=version):
                other = Environment(python, Path(self.work.name) / version, self.wheel)
                done = other.run("python", "-c", "import spillway; print(spillway.__version__); spillway.install()")
                self.assertEqual((done.returncode, done.stdout), (1, "0.1.0\n"), done.stderr)
                last = done.stderr.splitlines()[-1]
                self.assertIn("SpillwayError: PyTorch cannot be imported", last)
                self.assertIn("install torch first", last)
                done = other.run("spillway", "--version")
                self.assertEqual((done.returncode, done.stdout), (0, "spillway 0.1.0\n"), done.stderr)
                done = other.run("spillway", "run", "--", "python", "-c", "print('untouched')")
                self.assertEqual((done.returncode, done.stdout), (0, "untouched\n"), done.stderr)
                done = other.run("spillway", "dryrun", "--gpu-memory", "1GiB", "--", "python", "-c", "import torch")
                self.assertEqual(done.returncode, 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
