"""Every way in which a program reaches its driver: its memory is served, all of it comes back, and none is handed out
while a stream still uses it (the race detector)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from under import AUDITOR, COMMAND, DRIVER, PRELOAD, PROGRAMS, SANITIZER, SIM, Run, run

# Their runtimes end a program that opens a library so, and have more thread-local memory than a program with an
# auditor has room for.
refused_by_sanitizers = unittest.skipIf(SANITIZER is not None, "sanitizers refuse RTLD_DEEPBIND")

# pairs.c asks for four blocks a round, 200 rounds.
PAIRS = 800
# runtime.c asks for three blocks a round, 100 rounds; four by functions that the runtime hands out; one.
RUNTIME = 305


class Matrix(unittest.TestCase):
    ORDERS = range(1, 9 if SANITIZER is None else 3)  # seeds of the device; programs start slowly under a sanitizer

    def assert_served(self, done: Run, blocks: int) -> None:
        self.assertEqual(done.code, 0, done.err)
        self.assertNotIn("spillway:", done.err)
        self.assertEqual(done.served(), blocks)
        stats = done.stats()
        self.assertEqual(stats["allocated_bytes"]["all"]["current"], 0)
        self.assertEqual(stats["allocation"]["all"]["current"], 0)
        self.assertNotIn("preload_plain_bytes", done.device()["annotations"])

    def assert_pairs(self, done: Run) -> None:
        self.assert_served(done, PAIRS)
        self.assertIn("driver calls of cuMemAlloc: 0", done.out)

    def test_without_the_preload_the_driver_serves(self) -> None:
        done = run(PROGRAMS / "preload_pairs", "dlsym", preload=[])
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn("driver calls of cuMemAlloc: 600", done.out)

    def test_dlsym(self) -> None:
        self.assert_pairs(run(PROGRAMS / "preload_pairs", "dlsym"))

    def test_first_shape_of_get_proc_address(self) -> None:
        self.assert_pairs(run(PROGRAMS / "preload_pairs", "first"))

    def test_modern_shape_of_get_proc_address(self) -> None:
        self.assert_pairs(run(PROGRAMS / "preload_pairs", "modern"))

    def test_per_thread_default_streams(self) -> None:
        self.assert_pairs(run(PROGRAMS / "preload_pairs", "per-thread"))

    def test_linked(self) -> None:
        self.assert_pairs(run(PROGRAMS / "preload_pairs_linked", "linked"))

    def test_driver_that_is_preloaded_itself(self) -> None:
        self.assert_pairs(run(PROGRAMS / "preload_pairs", "modern", preload=[PRELOAD, DRIVER]))

    def test_in_many_orders_of_the_device(self) -> None:
        for seed in self.ORDERS:
            for completion in ("late", "run-ahead"):
                with self.subTest(seed=seed, completion=completion):
                    simulated = f"capacity:4GiB,seed:{seed},completion:{completion}"
                    self.assert_pairs(run(PROGRAMS / "preload_pairs", "modern", simulated=simulated))

    def test_on_a_small_device(self) -> None:
        # The pending frees must come back in time.
        self.assert_pairs(run(PROGRAMS / "preload_pairs", "modern", simulated="capacity:64MiB,completion:run-ahead"))

    def test_shared_runtime(self) -> None:
        self.assert_served(run(PROGRAMS / "preload_runtime", LD_LIBRARY_PATH=str(SIM)), RUNTIME)

    def test_runtime_as_part_of_the_program(self) -> None:
        self.assert_served(run(PROGRAMS / "preload_runtime_static"), RUNTIME)

    def test_python_ctypes(self) -> None:
        program = textwrap.dedent(
            """
            import ctypes, os
            driver = ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"])
            context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
            assert driver.cuInit(0) == 0
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert driver.cuCtxSetCurrent(context) == 0
            for size in range(1, 101):
                assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size << 12)) == 0
                assert driver.cuMemsetD8_v2(pointer, 1, ctypes.c_size_t(size << 12)) == 0
                assert driver.cuMemFree_v2(pointer) == 0
            assert driver.spwSimReportCount() == 0
            """
        )
        self.assert_served(run(sys.executable, "-c", program), 100)

    def deepbind(self) -> Run:
        """A library that looks the driver's functions up."""
        return run(PROGRAMS / "preload_pairs", "deepbind", TEST_PLUGIN=str(PROGRAMS / "libpreload_plugin.so"))

    def deepbind_linked(self, when: str) -> Run:
        """A library that is linked with the driver, bound at once or with the first calls."""
        program = textwrap.dedent(
            f"""
            import ctypes, os
            flags = os.{when} | os.RTLD_DEEPBIND
            library = ctypes.CDLL(os.environ["TEST_LIBRARY"], mode=flags)
            assert library.allocate_and_free(100) == 0
            assert ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"]).spwSimReportCount() == 0
            """
        )
        library = PROGRAMS / "libpreload_linked_library.so"
        return run(sys.executable, "-c", program, TEST_LIBRARY=str(library))

    @refused_by_sanitizers
    def test_deepbind(self) -> None:
        """Without the auditor the driver serves."""
        for done in (self.deepbind(), self.deepbind_linked("RTLD_NOW"), self.deepbind_linked("RTLD_LAZY")):
            self.assertEqual((done.code, done.err), (0, ""))
            self.assertEqual(done.served(), 0)

    def test_second_interposer_behind(self) -> None:
        interposer = PROGRAMS / "libpreload_interposer.so"
        self.assert_pairs(run(PROGRAMS / "preload_pairs", "modern", preload=[PRELOAD, interposer]))
        self.assert_pairs(run(PROGRAMS / "preload_pairs_linked", "linked", preload=[PRELOAD, interposer]))

    def test_second_interposer_in_front(self) -> None:
        interposer = PROGRAMS / "libpreload_interposer.so"
        self.assert_pairs(run(PROGRAMS / "preload_pairs", "modern", preload=[interposer, PRELOAD]))
        linked = run(PROGRAMS / "preload_pairs_linked", "linked", preload=[interposer, PRELOAD])
        self.assertIn("interposer: 600 allocations", linked.err)
        self.assertEqual((linked.code, linked.served()), (0, PAIRS))

    def test_fork_after_use(self) -> None:
        done = run(PROGRAMS / "preload_pairs", "modern", "child")
        self.assertEqual(done.code, 0, done.err)
        # The child's end writes no dump of its parent's device.
        self.assertEqual(len(done.dumps), 1)
        self.assertEqual(done.served(), 2 * PAIRS)

    def test_fork_before_use(self) -> None:
        self.assert_pairs(run(PROGRAMS / "preload_pairs", "modern", "first-child"))

    def test_exit_in_the_middle(self) -> None:
        done = run(PROGRAMS / "preload_pairs", "modern", "exit")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn("driver calls of cuMemAlloc: 0", done.out)
        blocks = done.stats()["allocation"]["all"]
        self.assertEqual((blocks["allocated"], blocks["freed"]), (404, 404))

    def test_abort_in_the_middle(self) -> None:
        done = run(PROGRAMS / "preload_pairs", "modern", "abort")
        self.assertEqual((done.code, done.err), (-6, ""))
        # It leaves no dump: by what the device was not asked for.
        self.assertIn("driver calls of cuMemAlloc: 0", done.out)

    def test_shells_and_other_programs(self) -> None:
        done = run("/bin/sh", "-c", "echo $((6 * 7)); exec /bin/echo again")
        self.assertEqual((done.code, done.out, done.err), (0, "42\nagain\n", ""))
        self.assertEqual(done.dumps, [])

    def test_a_program_without_a_driver_pays_nothing(self) -> None:
        done = run("/bin/cat", "/proc/self/maps", "/proc/self/status")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn(PRELOAD.name, done.out)
        self.assertNotIn("libspillway.so", done.out)
        self.assertNotIn("libcuda", done.out)
        self.assertIn("Threads:\t1\n", done.out)

    def test_switched_off(self) -> None:
        done = run(PROGRAMS / "preload_pairs", "modern", SPILLWAY_DISABLE="1")
        self.assertEqual((done.code, done.err, done.dumps), (0, "", []))
        self.assertIn("driver calls of cuMemAlloc: 600", done.out)

    def test_opened_by_the_program(self) -> None:
        program = textwrap.dedent(
            """
            import ctypes, os
            driver = ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"])
            hooks = ctypes.CDLL(os.environ["TEST_PRELOAD"])
            context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
            assert driver.cuInit(0) == 0
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert driver.cuCtxSetCurrent(context) == 0
            assert hooks.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
            assert hooks.cuMemFree_v2(pointer) == 0
            assert driver.spwSimReportCount() == 0
            """
        )
        self.assert_served(run(sys.executable, "-c", program, preload=[], TEST_PRELOAD=str(PRELOAD)), 1)


@refused_by_sanitizers
class Audited(Matrix):
    """All of it with the auditor, which spillway run --preload --audit adds."""

    ORDERS = range(1, 2)  # it has no say in them

    @classmethod
    def setUpClass(cls) -> None:
        os.environ["LD_AUDIT"] = str(AUDITOR)

    @classmethod
    def tearDownClass(cls) -> None:
        del os.environ["LD_AUDIT"]

    def test_deepbind(self) -> None:
        self.assert_pairs(self.deepbind())
        self.assert_served(self.deepbind_linked("RTLD_NOW"), 100)
        self.assert_served(self.deepbind_linked("RTLD_LAZY"), 100)

    def test_without_the_preload_library_it_does_nothing(self) -> None:
        done = run(PROGRAMS / "preload_pairs", "modern", preload=[])
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn("driver calls of cuMemAlloc: 600", done.out)


# Opens the driver, asks it for what Spillway does not stand before, and tells what is in the process.
LOOK = """
import ctypes, os
driver = ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"])
version = ctypes.c_int()
assert driver.cuInit(0) == 0 and driver.cuDriverGetVersion(ctypes.byref(version)) == 0
print(open("/proc/self/maps").read(), os.listdir("/proc/self/task"))
"""


def own_instructions(profile: Path, library: str) -> int:
    """Of the library alone, from what callgrind wrote: lines of costs, under the object that they belong to; the line
    after calls= is the cost of who was called. An object's name stands where it comes first."""
    names: dict[str, str] = {}
    current, is_of_callee, count = "", False, 0
    for line in profile.read_text().splitlines():
        if found := re.fullmatch(r"(c?)ob=\((\d+)\)(?: (.*))?", line):
            is_called, number, name = found.groups()
            names[number] = name or names[number]
            current = current if is_called else names[number]
        elif line.startswith("calls="):
            is_of_callee = True
        elif re.match(r"[-+*\d]", line):
            count += int(line.split()[1]) if current.endswith(library) and not is_of_callee else 0
            is_of_callee = False
    return count


@unittest.skipIf(SANITIZER is not None, "the sanitizer's library does more at its start than this one")
class WithoutCuda(unittest.TestCase):
    """A program that never uses CUDA is the same to the system with this library and with an empty one."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.empty = self.folder / "libempty.so"
        compiler = os.environ["SPILLWAY_CC"]
        subprocess.run([compiler, "-shared", "-o", self.empty, "-x", "c", "/dev/null"], check=True)

    def run_under(self, tool: str, *options: str, preload: Path) -> None:
        """With files to write, if anything did."""
        if shutil.which(tool) is None:
            self.skipTest(f"no {tool}")
        # By env, so that it is the program's alone.
        program = ("/usr/bin/env", f"LD_PRELOAD={preload}", "/bin/true")
        done = run(tool, *options, *program, preload=[], SPILLWAY_CONF=f"trace:{self.folder}/trace.zst")
        if "Operation not permitted" in done.err or "PTRACE" in done.err:
            self.skipTest(done.err)
        self.assertEqual((done.code, done.dumps), (0, []), done.err)
        self.assertFalse((self.folder / "trace.zst").exists())

    def system_calls(self, preload: Path) -> list[str]:
        log = self.folder / "calls"
        self.run_under("strace", "-f", "-o", str(log), preload=preload)
        lines = log.read_text().splitlines()
        # The program, which env becomes, starts after the second execve.
        starts = [i for i, line in enumerate(lines) if " execve(" in line and line.endswith("= 0")]
        calls = [match[1] for line in lines[starts[-1] :] if (match := re.match(r"\d+ +(\w+)\(", line))]
        self.assertTrue(any(str(preload) in line for line in lines), "it was not loaded")
        self.assertIn("exit_group", calls)
        return calls

    def test_no_system_call_more(self) -> None:
        self.assertEqual(self.system_calls(PRELOAD), self.system_calls(self.empty))

    def instructions(self, preload: Path) -> int:
        log = self.folder / "profile"
        self.run_under(
            "valgrind",
            "--tool=callgrind",
            "--trace-children=yes",
            f"--callgrind-out-file={log}",
            preload=preload,
        )
        return own_instructions(log, preload.name)

    def test_no_instruction_more(self) -> None:
        """A few that the compiler puts into every library run."""
        of_empty = self.instructions(self.empty)
        self.assertGreater(of_empty, 0)
        self.assertEqual(self.instructions(PRELOAD), of_empty)

    def test_a_driver_that_is_asked_for_no_memory(self) -> None:
        done = run(sys.executable, "-c", LOOK)
        self.assertEqual((done.code, done.err, done.dumps), (0, "", []))
        self.assertIn(PRELOAD.name, done.out)
        self.assertIn(DRIVER.name, done.out)
        self.assertNotIn("libspillway.so", done.out)
        self.assertEqual(done.out.split("[")[-1].count(","), 0, "more than one thread")


# A library, and a program that is linked with it.
THREAD_LOCAL = """
int count(void);
#ifdef LIBRARY
static __thread int counts[8192] __attribute__((tls_model("initial-exec")));
int count(void) { return counts[0]++; }
#else
int main(void) { return count(); }
#endif
"""


class TheCommand(unittest.TestCase):
    def test_run_preload(self) -> None:
        done = run(COMMAND, "run", "--quiet", "--preload", "--", PROGRAMS / "preload_pairs", "modern", preload=[])
        self.assertEqual((done.code, done.err, done.served()), (0, "", PAIRS))

    @refused_by_sanitizers
    def test_run_preload_of_a_library_that_is_bound_deeply(self) -> None:
        command = (COMMAND, "run", "--quiet", "--preload", "--audit", "--", PROGRAMS / "preload_pairs", "deepbind")
        done = run(*command, preload=[], TEST_PLUGIN=str(PROGRAMS / "libpreload_plugin.so"))
        self.assertEqual((done.code, done.err, done.served()), (0, "", PAIRS))

    @refused_by_sanitizers
    def test_an_audited_program_with_much_thread_local_memory(self) -> None:
        """The loader has no room for it otherwise where there is an auditor."""
        with tempfile.TemporaryDirectory() as folder:
            source, library, program = (Path(folder) / name for name in ("library.c", "library.so", "program"))
            source.write_text(THREAD_LOCAL)
            compiler = os.environ["SPILLWAY_CC"]
            subprocess.run([compiler, "-shared", "-fPIC", "-DLIBRARY", "-o", library, source], check=True)
            subprocess.run([compiler, "-o", program, source, library], check=True)
            done = run(COMMAND, "run", "--quiet", "--preload", "--audit", "--", program, preload=[])
        self.assertEqual((done.code, done.err), (0, ""))

    def test_what_it_cannot_be_combined_with(self) -> None:
        done = run(COMMAND, "run", "--preload", "--plain", "--", "true", preload=[])
        self.assertEqual(done.code, 1)
        self.assertIn("--preload", done.err)
        done = run(COMMAND, "run", "--audit", "--", "true", preload=[])
        self.assertEqual(done.code, 1)
        self.assertIn("--preload", done.err)


if __name__ == "__main__":
    unittest.main()
