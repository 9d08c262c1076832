"""The mistakes that others made when they stood between a program and its driver, each by its name; and what happens
where Spillway cannot serve."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from under import AUDITOR, BUILD, DRIVER, PRELOAD, PROGRAMS, SANITIZER, Run, run

# A library by the driver's name that has only some of its functions.
FAKE = """
int cuInit(unsigned flags) { (void)flags; return 0; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuMemAlloc_v2(unsigned long long* out, unsigned long bytes) { *out = bytes; return 0; }
"""


# A library of days to come: a function has another signature.
NEWER = """
#include <string.h>
int cuMemAlloc_v3(unsigned long long* out, unsigned long bytes, int kind) { *out = bytes + kind; return 0; }
int cuGetProcAddress_v2(const char* name, void** out, int version, unsigned long long flags, int* status) {
  (void)flags;
  *out = 0;
  if (strcmp(name, "cuMemAlloc") == 0) *out = version >= 14000 ? (void*)cuMemAlloc_v3 : (void*)cuMemAlloc_v2;
  if (status != 0) *status = *out == 0;
  return *out == 0 ? 500 : 0;
}
"""
# Passes calls on to the driver, which it finds beside itself when it is called first.
FORWARDING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
static void* find(const char* name) {
  static void* driver;
  Dl_info own;
  char path[4096];
  dladdr((void*)find, &own);
  snprintf(path, sizeof path, "%s.1", own.dli_fname);
  if (driver == 0) driver = dlopen(path, RTLD_NOW);
  return dlsym(driver, name);
}
int cuInit(unsigned flags) { return ((int (*)(unsigned))find("cuInit"))(flags); }
int cuDriverGetVersion(int* version) { return ((int (*)(int*))find("cuDriverGetVersion"))(version); }
int cuMemAlloc_v2(unsigned long long* out, unsigned long bytes) {
  return ((int (*)(unsigned long long*, unsigned long))find("cuMemAlloc_v2"))(out, bytes);
}
"""


def make_driver(folder: str, text: str = FAKE, name: str = "libcuda.so.1") -> Path:
    library, source = Path(folder) / name, Path(folder) / f"{name}.c"
    source.write_text(text)
    words = [
        os.environ["SPILLWAY_CC"],
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{name}",
        "-o",
        str(library),
        str(source),
        "-ldl",
    ]
    subprocess.run(words, check=True)
    return library


class LookUps(unittest.TestCase):
    def case(self, name: str) -> None:
        done = run(PROGRAMS / "preload_lookups", name)
        self.assertEqual((done.code, done.err), (0, ""))

    def test_a_prefix_is_not_a_name(self) -> None:
        """cudnnCreate was taken for the driver's and looked up in itself, to the end of the stack (HAMi-core 215)."""
        self.case("prefix")

    def test_it_does_not_look_itself_up(self) -> None:
        """Without a handle of its own, the wrapper asked everybody, and so itself, for each name (HAMi-core 215)."""
        done = run(PROGRAMS / "preload_lookups", "own-handle", preload=[], TEST_PRELOAD=str(PRELOAD))
        self.assertEqual((done.code, done.err), (0, ""))

    def test_a_driver_behind_another_library_of_its_name(self) -> None:
        """WSL2's libcuda.so.1 passes calls on to libcuda.so.1.1, and was given those wrappers (HAMi-core 326)."""
        with tempfile.TemporaryDirectory() as folder:
            make_driver(folder, name="libcuda.so.1.1")
            driver = str(make_driver(folder, FORWARDING))
            done = run(PROGRAMS / "preload_lookups", "forwarded", SPILLWAY_LIBCUDA=driver)
        self.assertEqual(done.code, 0, done.err)

    def test_a_newer_signature_is_left_alone(self) -> None:
        """A look-up tried name_v3, then name_v2, then the name, whatever version was asked for."""
        with tempfile.TemporaryDirectory() as folder:
            driver = str(make_driver(folder, FAKE + NEWER))
            done = run(PROGRAMS / "preload_lookups", "newer", SPILLWAY_LIBCUDA=driver)
        self.assertEqual((done.code, done.err), (0, ""))

    def test_addresses_are_asked_for_before_the_driver_is_initialised(self) -> None:
        """The runtime does so first (nvshare)."""
        self.case("before-init")

    def test_its_own_look_ups_are_the_c_librarys(self) -> None:
        """A library that imports the dlsym that it exports ends up in itself (vgpu-manager 89)."""
        text = subprocess.run(["nm", "-D", "--undefined-only", PRELOAD], capture_output=True, text=True, check=True)
        names = {line.split()[-1].split("@")[0] for line in text.stdout.splitlines()}
        self.assertIn("dlvsym", names)
        self.assertFalse(names & {"dlsym", "dlopen"})

    def test_nothing_is_fabricated(self) -> None:
        """A look-up that failed was answered with a wrapper."""
        self.case("fabricated")

    def test_without_a_driver_there_is_nothing(self) -> None:
        self.case("absent")

    def test_what_the_driver_lacks_is_not_there(self) -> None:
        """This library has the name, and so the process has one wherever it is looked for."""
        with tempfile.TemporaryDirectory() as folder:
            done = run(PROGRAMS / "preload_lookups", "lacking", SPILLWAY_LIBCUDA=str(make_driver(folder)))
        self.assertEqual((done.code, done.err), (0, ""))

    def test_the_runtime_finds_nothing_in_a_driver_that_is_too_old(self) -> None:
        """cudaGetDriverEntryPoint and its kin ask for cuGetProcAddress_v2, which is newer than some drivers."""
        with tempfile.TemporaryDirectory() as folder:
            driver = str(make_driver(folder))
            for program in ("preload_runtime", "preload_runtime_static"):
                for preload in ([PRELOAD], []):
                    with self.subTest(program=program, preload=preload):
                        done = run(PROGRAMS / program, "without", preload=preload, SPILLWAY_LIBCUDA=driver)
                        self.assertEqual((done.code, done.err), (0, ""))

    def test_flags_are_honoured(self) -> None:
        """A caller that asked for per-thread default streams was given the legacy variant."""
        self.case("flags")

    def test_both_shapes_of_get_proc_address(self) -> None:
        self.case("shapes")

    def test_old_names_of_a_hooked_function_are_hooked(self) -> None:
        self.case("old-names")

    def test_next_is_relative_to_the_caller_and_repeatable(self) -> None:
        """The second dlsym(RTLD_NEXT) of a name was taken for a recursion (HAMi-core 279)."""
        self.case("next")

    def test_look_ups_of_a_version_are_passed_through(self) -> None:
        """libcudart, cuBLAS and NCCL import dlvsym."""
        self.case("versioned")

    def test_look_ups_end_in_a_jump(self) -> None:
        """RTLD_NEXT of another interposer was resolved relative to the wrapper: endless recursion."""
        objdump = shutil.which("objdump")
        if objdump is None:
            self.skipTest("no objdump")
        lines = subprocess.run(
            [objdump, "-d", "--no-show-raw-insn", PRELOAD], capture_output=True, text=True, check=True
        ).stdout.split("\n\n")
        for name in ("dlsym", "dlopen"):
            code = [
                line.split("\t", 1)[1]
                for function in lines
                if f"<{name}@@GLIBC_2.34>:" in function or f"<spw_{name}>:" in function
                for line in function.splitlines()
                if "\t" in line
            ]
            self.assertTrue(code)
            jumps = [line for line in code if line.startswith(("jmp    *", "br\t"))]
            self.assertTrue(jumps, "\n".join(code))

    @unittest.skipIf(SANITIZER is not None, "needs the sanitizer too")
    def test_needs_the_c_library_alone(self) -> None:
        text = subprocess.run(["readelf", "-d", PRELOAD], capture_output=True, text=True, check=True).stdout
        needed = [line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]
        self.assertTrue(
            needed and all(name.startswith(("libc.so", "ld-linux", "libdl.so", "libm.so")) for name in needed), needed
        )

    def test_the_auditor_needs_nothing(self) -> None:
        """It has libraries of its own otherwise, in every process."""
        text = subprocess.run(["readelf", "-d", AUDITOR], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("(NEEDED)", text)
        names = subprocess.run(["nm", "-D", AUDITOR], capture_output=True, text=True, check=True).stdout
        self.assertEqual(
            {line.split()[-1] for line in names.splitlines()}, {"la_version", "la_objopen", "la_symbind64"}
        )

    def test_every_hook_is_exported_and_nothing_else(self) -> None:
        rows = (Path(__file__).parents[2] / "abi" / "preload" / "hooks.inc").read_text()
        symbols = {
            line.split(",")[2].strip() for line in rows.splitlines() if line.startswith(("SPW_HOOK(", "SPW_HOOK_PTSZ("))
        }
        symbols |= {line.split("(")[1].split(",")[0] for line in rows.splitlines() if line.startswith("SPW_HOOK_OLD(")}
        listed = subprocess.run(
            ["nm", "-D", "--defined-only", PRELOAD], capture_output=True, text=True, check=True
        ).stdout
        exported = {line.split()[-1].split("@")[0] for line in listed.splitlines() if " A " not in line}
        others = {"dlopen", "dlsym", "spw_preload_dlsym", "cuGetProcAddress", "cuGetProcAddress_v2"}
        self.assertEqual(exported - symbols, others)
        self.assertEqual(symbols - exported, set())

    def test_answers_agree_with_what_is_served(self) -> None:
        done = run(PROGRAMS / "preload_answers", "modern")
        self.assertEqual((done.code, done.err), (0, ""))


USE = """
import ctypes, os
driver = ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"])
pointer = ctypes.c_uint64()
assert driver.cuInit(0) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4096)) == 0
print(pointer.value)
"""


class StandsAside(unittest.TestCase):
    def assert_aside(self, done: Run, why: str) -> None:
        self.assertEqual(done.code, 0, done.err)
        lines = [line for line in done.err.splitlines() if line]
        self.assertEqual(len(lines), 1, done.err)
        self.assertTrue(lines[0].startswith("spillway: preload: "), lines[0])
        self.assertIn(why, lines[0])
        self.assertTrue(lines[0].endswith("the program runs without Spillway"), lines[0])

    def test_another_driver_than_the_one_that_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            other = Path(shutil.copy(DRIVER.resolve(), Path(folder) / "libcuda.so.1"))
            program = textwrap.dedent(
                """
                import ctypes, os
                driver = ctypes.CDLL(os.environ["TEST_DRIVER"])
                context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
                assert driver.cuInit(0) == 0
                assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
                assert driver.cuCtxSetCurrent(context) == 0
                assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4096)) == 0
                print("driver calls:", driver.spwSimCalls(b"cuMemAlloc"))
                """
            )
            done = run(sys.executable, "-c", program, TEST_DRIVER=str(other))
        self.assertIn("driver calls: 1", done.out)
        self.assert_aside(done, "another driver library")

    def test_a_driver_that_lacks_functions(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = run("/usr/bin/env", "python3", "-c", USE, SPILLWAY_LIBCUDA=str(make_driver(folder)))
        self.assertEqual(done.out, "4096\n")
        self.assert_aside(done, "lacks cu")

    def test_no_libspillway(self) -> None:
        done = run(PROGRAMS / "preload_pairs", "modern", SPILLWAY_LIBRARY="/nowhere/libspillway.so.0")
        self.assertIn("driver calls of cuMemAlloc: 600", done.out)
        self.assert_aside(done, "libspillway.so.0 cannot be loaded")

    def test_a_libspillway_of_another_version(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder) / "libspillway.so.0"
            subprocess.run([os.environ["SPILLWAY_CC"], "-shared", "-o", other, "-x", "c", "/dev/null"], check=True)
            done = run(PROGRAMS / "preload_pairs", "modern", SPILLWAY_LIBRARY=str(other))
        self.assert_aside(done, "of another version")

    def test_a_driver_that_is_too_old(self) -> None:
        done = run(PROGRAMS / "preload_pairs", "modern", simulated="version:11080")
        self.assert_aside(done, "12.0 or newer is needed")

    def test_unknown_configuration(self) -> None:
        done = run(PROGRAMS / "preload_pairs", "modern", SPILLWAY_CONF="nonsense:1")
        self.assertEqual(done.code, 0)
        self.assertEqual(done.err.count("\n"), 1)
        self.assertIn("nonsense", done.err)

    def test_unknown_configuration_where_that_is_an_error(self) -> None:
        done = run(PROGRAMS / "preload_pairs", "modern", SPILLWAY_CONF="nonsense:1,strict:on")
        self.assertIn("driver calls of cuMemAlloc: 600", done.out)
        self.assert_aside(done, "nonsense")


if __name__ == "__main__":
    assert BUILD.is_dir()
    unittest.main()
