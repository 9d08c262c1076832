"""Programs that only nvcc compiles. The example with Thrust and CUB is run too: on the simulated device, whose kernels
do nothing, as far as its memory goes, and on a GPU to its end."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NVCC = os.environ["SPILLWAY_NVCC"]
LIBRARIES = Path(os.environ["SPILLWAY_LIBRARY_FOLDER"])
CUDART = Path(os.environ["SPILLWAY_CUDART"])
ON_GPU = "SPILLWAY_TEST_GPU" in os.environ
# Without a device there is none to ask; any that CUDA 12 and 13 know will do then.
ARCHITECTURE = "native" if ON_GPU else "sm_90"
ROUNDS = 10


def release() -> int:
    text = subprocess.run([NVCC, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release (\d+)\.", text)
    assert found is not None, text
    return int(found[1])


def compile_to(program: Path, source: str, *options: str) -> None:
    words = [
        NVCC,
        "-std=c++17",
        f"-arch={ARCHITECTURE}",
        "-Werror",
        "all-warnings",
        "-o",
        str(program),
        str(ROOT / source),
    ]
    done = subprocess.run([*words, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Nvcc(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_the_program_that_is_preloaded_on_a_gpu(self) -> None:
        for runtime in ("shared", "static"):
            with self.subTest(runtime):
                compile_to(self.folder / runtime, "tests/preload/programs/kernel.cu", f"-cudart={runtime}")

    def test_thrust_and_cub_take_their_memory_from_spillway(self) -> None:
        program = self.folder / "thrust_sort"
        options = ("-I", str(ROOT / "include"), "-cudart=shared", "-L", str(LIBRARIES), "-lspillway")
        compile_to(program, "examples/cpp/thrust_sort.cu", *options)
        if not ON_GPU and release() != int(CUDART.name.rpartition(".")[2]):
            self.skipTest("the simulated runtime is of another release than nvcc's: compiled, not run")
        path = f"{LIBRARIES}:{CUDART.parent}"
        done = subprocess.run(
            [program], env={**os.environ, "LD_LIBRARY_PATH": path}, capture_output=True, text=True, check=False
        )
        # In each round one for the sort, and the scratch memory of the reduction.
        counted = re.match(r"10 rounds; temporary blocks: (\d+); driver calls .* second half: 0\n", done.stdout)
        assert counted is not None, done.stdout + done.stderr
        self.assertGreaterEqual(int(counted[1]), 2 * ROUNDS)
        if ON_GPU:
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        else:
            self.assertEqual((done.returncode, done.stderr), (1, "thrust_sort: the numbers are not sorted\n"))


if __name__ == "__main__":
    unittest.main()
