"""Programs that find no driver: they run as they would, and are told once if they asked for one. To notice that, the
preload library stands before dlopen, which must be the same to everybody."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from under import AUDITOR, COMMAND, DRIVER, PRELOAD, PROGRAMS, SANITIZER, Run, run

NOWHERE = "/nowhere/libcuda.so.1"

ASK = """
import ctypes, os, sys
try:
    ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"])
except OSError as problem:
    sys.exit(f"without: {problem}")
"""
SHOW = "import os; print(os.environ.get('SPILLWAY_DRIVER'))"
# A child is forked by a parent that asks before, or by one that does not.
FORK = """
import ctypes, os, sys
def ask():
    try:
        ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"])
    except OSError:
        pass
if sys.argv[1] == "before":
    ask()
child = os.fork()
if child == 0:
    ask()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
# This asks for what no driver is needed for: other names, and whether it is there already.
OTHERS = """
import ctypes, os
for name, flags in (("libcuda.so.1", os.RTLD_NOLOAD), ("libcudart.so.7", 0), ("libcuda_other.so", 0)):
    try:
        ctypes.CDLL(name, mode=flags | os.RTLD_NOW)
    except OSError:
        continue
    raise SystemExit(f"{name} is here")
ctypes.CDLL(None)
"""
CLOSED = """
import ctypes, os, _ctypes
_ctypes.dlclose(ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"])._handle)
assert "libcuda" not in open("/proc/self/maps").read()
"""

# By a name that is not there, then by one that is.
SECOND_NAME = """
import ctypes, os, _ctypes
driver = os.environ["SPILLWAY_LIBCUDA"]
try:
    ctypes.CDLL(driver + ".nowhere")
except OSError:
    _ctypes.dlclose(ctypes.CDLL(driver)._handle)
"""

# By more names than are kept, the last of which is there.
LAST_OF_MANY = """
import ctypes, os, _ctypes
driver = os.environ["SPILLWAY_LIBCUDA"]
for number in range(8):
    try:
        ctypes.CDLL(f"{driver}.{number}")
    except OSError:
        pass
_ctypes.dlclose(ctypes.CDLL(driver)._handle)
"""

# Finds a library by its own RUNPATH and $ORIGIN alone, and says what is wrong with one that is not there.
BY_RUNPATH = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
  for (int i = 0; i < 2; ++i) {
    if (dlopen("libfound.so", i == 0 ? RTLD_NOW : RTLD_LAZY | RTLD_DEEPBIND) == 0) return puts(dlerror()), 1;
    if (dlopen("$ORIGIN/private/libfound.so", RTLD_NOW) == 0) return puts(dlerror()), 1;
  }
  void* itself = dlopen(0, RTLD_NOW);
  if (itself == 0 || dlsym(itself, "puts") == 0 || dlopen("libcuda.so.77", RTLD_NOW) != 0) return 1;
  puts(dlerror());
  return 0;
}
"""
# Another library in LD_PRELOAD that stands before dlopen.
INTERPOSER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
static int opened;
__attribute__((destructor)) static void say(void) { if (opened) fprintf(stderr, "interposer: %d\\n", opened); }
void* dlopen(const char* name, int flags) {
  static void* (*next)(const char*, int);
  if (next == 0) *(void**)&next = dlsym(RTLD_NEXT, "dlopen");
  ++opened;
  return next(name, flags);
}
"""


def compile_c(text: str, out: Path, *options: str) -> Path:
    compiler = os.environ["SPILLWAY_CC"]
    words = [compiler, "-O2", *options, "-o", str(out), "-x", "c", "-", "-ldl"]
    subprocess.run(words, input=text, text=True, check=True)
    return out


class MissingDriver(unittest.TestCase):
    def assert_said(self, done: Run, why: str) -> None:
        said = [line for line in done.err.splitlines() if line.startswith("spillway: ")]
        self.assertEqual(len(said), 1, done.err)
        self.assertTrue(said[0].startswith("spillway: preload: no driver was found ("), said[0])
        self.assertIn(why, said[0])
        self.assertTrue(said[0].endswith("the program runs without Spillway"), said[0])

    def test_a_program_that_asks_for_one(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "libcuda.so.1"
            text.write_text("no library")
            for driver, why in ((NOWHERE, "No such file"), (str(text), "file too short")):
                with self.subTest(driver=driver):
                    done = run(sys.executable, "-c", ASK, SPILLWAY_LIBCUDA=driver)
                    self.assertEqual(done.code, 1)
                    self.assertIn("without: ", done.err)
                    self.assert_said(done, why)

    @unittest.skipIf(SANITIZER is not None, "sanitizers have more thread-local memory than there is room for")
    def test_with_the_auditor(self) -> None:
        self.assert_said(
            run(sys.executable, "-c", ASK, SPILLWAY_LIBCUDA=NOWHERE, LD_AUDIT=str(AUDITOR)), "No such file"
        )

    def test_a_runtime_that_asks_for_one(self) -> None:
        done = run(PROGRAMS / "preload_runtime_static", SPILLWAY_LIBCUDA=NOWHERE)
        self.assertNotEqual(done.code, 0)
        self.assert_said(done, "No such file")

    def test_a_program_that_asks_for_none(self) -> None:
        done = run(sys.executable, "-c", OTHERS, SPILLWAY_LIBCUDA=NOWHERE)
        self.assertEqual((done.code, done.err), (0, ""))

    def test_a_program_that_finds_one(self) -> None:
        for program in (ASK, CLOSED, SECOND_NAME, LAST_OF_MANY):
            done = run(sys.executable, "-c", program, SPILLWAY_LIBCUDA=str(DRIVER))
            self.assertEqual((done.code, done.err), (0, ""))

    def test_switched_off(self) -> None:
        done = run(sys.executable, "-c", ASK, SPILLWAY_LIBCUDA=NOWHERE, SPILLWAY_DISABLE="1")
        self.assertNotIn("spillway:", done.err)

    def test_children_say_it_once(self) -> None:
        for when in ("before", "after"):
            with self.subTest(when):
                self.assert_said(run(sys.executable, "-c", FORK, when, SPILLWAY_LIBCUDA=NOWHERE), "No such file")

    def test_the_command_says_it_once(self) -> None:
        for variables in ({"SPILLWAY_LIBCUDA": NOWHERE}, {"simulated": "version:11080"}):
            with self.subTest(**variables):
                program = (PROGRAMS / "preload_pairs", "modern")
                done = run(COMMAND, "run", "--preload", "--", *program, preload=[], **variables)
                self.assertEqual(done.err.count("spillway: "), 1, done.err)
                self.assertEqual(done.err.count("the program runs without Spillway"), 1, done.err)

    def test_what_the_command_found_hides_no_other_reason(self) -> None:
        done = run(
            PROGRAMS / "preload_pairs",
            "modern",
            SPILLWAY_LIBRARY="/nowhere/libspillway.so.0",
            SPILLWAY_DRIVER="unusable",
        )
        self.assertEqual(done.err.count("spillway: preload: libspillway.so.0 cannot be loaded"), 1, done.err)
        done = run(
            COMMAND, "run", "--preload", "--", sys.executable, "-c", SHOW, preload=[], SPILLWAY_DRIVER="unusable"
        )
        self.assertEqual((done.code, done.out.strip()), (0, "None"), done.err)


class Open(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "private").mkdir()
        compile_c("", self.folder / "private" / "libfound.so", "-shared")
        self.program = compile_c(BY_RUNPATH, self.folder / "program", "-Wl,-rpath,$ORIGIN/private")
        self.interposer = compile_c(INTERPOSER, self.folder / "libinterposer.so", "-shared", "-fPIC")

    @unittest.skipIf(SANITIZER is not None, "sanitizers refuse RTLD_DEEPBIND")
    def test_the_caller_is_who_calls(self) -> None:
        behind, before = [PRELOAD, self.interposer], [self.interposer, PRELOAD]
        for preload in ([], [PRELOAD], behind, before):
            for audit in ({}, {"LD_AUDIT": str(AUDITOR)}):
                with self.subTest(preload=preload, audit=audit):
                    done = run(self.program, preload=preload, SPILLWAY_LIBCUDA=NOWHERE, **audit)
                    self.assertEqual((done.code, done.out.count("libcuda.so.77: cannot open")), (0, 1), done.out)
                    self.assertEqual(done.err.count("no driver was found (libcuda.so.77: "), int(PRELOAD in preload))
                    self.assertEqual(done.err.count("interposer: "), int(self.interposer in preload), done.err)


if __name__ == "__main__":
    unittest.main()
