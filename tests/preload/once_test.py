"""The preload library and the Python package in one process: there is one Spillway, whichever of them is first, and
wherever their files are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from under import BUILD, PRELOAD, Run, run

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "spillway"

# Memory by the driver's call, and by the package's library; then the files of Spillway in the process.
PROGRAM = """
import ctypes, os, sys
from spillway._errors import SpillwayError
from spillway._library import library
def by_the_driver():
    driver = ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"])
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
    assert driver.cuMemFree_v2(pointer) == 0
def by_the_package():
    pointer = ctypes.c_void_p()
    assert library().spw_alloc(ctypes.c_size_t(1 << 20), 0, None, ctypes.byref(pointer)) == 0
    assert library().spw_free(pointer) == 0
if "before" in os.environ:
    ctypes.CDLL(os.environ["before"])
for step in sys.argv[1:]:
    try:
        {"driver": by_the_driver, "package": by_the_package, "load": library}[step]()
    except SpillwayError as problem:
        print(problem)
files = {line.split()[-1] for line in open("/proc/self/maps") if "libspillway.so" in line}
print(*files)
"""

# A library of a series to come.
OTHER = 'const char* spw_version(void) { return "0.9.0"; }'


class Once(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # A package as a wheel is, with a library of its own.
        shutil.copytree(PACKAGE, self.folder / "spillway", ignore=shutil.ignore_patterns("lib", "__pycache__"))
        (self.folder / "spillway" / "lib").mkdir()
        self.of_package = self.folder / "spillway" / "lib" / "libspillway.so.0"
        shutil.copy(BUILD / "lib" / "libspillway.so.0", self.of_package)

    def run_steps(self, *steps: str, **variables: str) -> Run:
        command = (sys.executable, "-c", PROGRAM, *steps)
        done = run(*command, preload=[PRELOAD], PYTHONPATH=str(self.folder), **variables)
        self.assertEqual(done.code, 0, done.err)
        return done

    def assert_one(self, done: Run, file: Path, served: int) -> None:
        self.assertEqual(done.err, "")
        self.assertEqual([Path(name).resolve() for name in done.out.split()], [file.resolve()])
        self.assertEqual(done.served(), served)

    def test_the_preload_library_is_first(self) -> None:
        self.assert_one(self.run_steps("driver", "package", "driver"), BUILD / "lib" / "libspillway.so.0", 3)

    def test_the_package_is_first(self) -> None:
        self.assert_one(self.run_steps("load", "driver", "package"), self.of_package, 2)

    def test_a_file_that_is_named_is_not_a_second_one(self) -> None:
        named = Path(shutil.copy(self.of_package, self.folder / "libspillway.so.0"))
        self.assert_one(self.run_steps("driver", "package", SPILLWAY_LIBRARY=str(named)), named, 2)

    def test_one_of_another_version_is_in_the_process(self) -> None:
        """The package refuses it, and the preload library leaves the program alone."""
        other = self.folder / "libother.so"
        words = [os.environ["SPILLWAY_CC"], "-shared", "-fPIC", "-Wl,-soname,libspillway.so.0", "-o", str(other)]
        subprocess.run([*words, "-x", "c", "-"], input=OTHER, text=True, check=True)
        done = self.run_steps("load", "driver", before=str(other))
        self.assertIn(f"{other} is Spillway 0.9.0, and this package ({self.of_package.parents[1]}) is 0.1.", done.out)
        self.assertEqual(done.err.count("\n"), 1)
        self.assertIn("libspillway.so.0 in this process is of another version", done.err)


if __name__ == "__main__":
    unittest.main()
