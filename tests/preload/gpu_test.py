"""Programs that only hardware can run, under the preload library: nvcc's, cuBLAS, CuPy. Not for the simulated device.

The arguments of NVCC in the environment, else of `nvcc` on the path, compile the first.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from under import run

HERE = Path(__file__).resolve().parent
NVCC = shlex.split(os.environ.get("NVCC", "")) or [path for path in [shutil.which("nvcc")] if path]

# C = A B of small whole numbers, so that every order of sums gives the same bits. Columns first.
CUBLAS = """
import ctypes, sys
import numpy
from cuda_libraries import library
cudart, cublas = library("cudart"), library("cublas")
N = 1024
rng = numpy.random.default_rng(0)
a, b = (rng.integers(-8, 9, (N, N)).astype(numpy.float32) for _ in range(2))
c = numpy.zeros((N, N), numpy.float32)
def check(status):
    assert status == 0, status
handle = ctypes.c_void_p()
check(cublas.cublasCreate_v2(ctypes.byref(handle)))
one, zero = ctypes.c_float(1), ctypes.c_float(0)
for _ in range(20):
    blocks = [ctypes.c_void_p() for _ in range(3)]
    for block in blocks:
        check(cudart.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(a.nbytes)))
    for block, array in zip(blocks, (a, b)):
        check(cudart.cudaMemcpy(block, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), 1))
    # Rows first are the columns of the other order: B A there is A B here.
    check(cublas.cublasSgemm_v2(handle, 0, 0, N, N, N, ctypes.byref(one), blocks[1], N, blocks[0], N,
                                ctypes.byref(zero), blocks[2], N))
    check(cudart.cudaMemcpy(ctypes.c_void_p(c.ctypes.data), blocks[2], ctypes.c_size_t(c.nbytes), 2))
    for block in blocks:
        check(cudart.cudaFree(block))
check(cublas.cublasDestroy_v2(handle))
assert (c == a @ b).all()
print(60)
"""

CUPY = """
import cupy
a = cupy.arange(1 << 20, dtype=cupy.float32)
cupy.cuda.set_allocator(None)
for _ in range(10):
    assert int((cupy.ones(1 << 20) + cupy.ones(1 << 20)).sum()) == 2 << 20
print(20)
"""


class Programs(unittest.TestCase):
    def is_served(self, *command: str | Path) -> None:
        """Ends well, and at least what it says it allocated was served."""
        done = run(*command, PYTHONPATH=str(HERE))
        self.assertEqual(done.code, 0, done.err)
        self.assertNotIn("spillway:", done.err)
        self.assertGreaterEqual(done.served(), int(done.out.splitlines()[-1]))

    @unittest.skipUnless(NVCC, "no nvcc on the path, and NVCC is not set")
    def test_programs_of_nvcc(self) -> None:
        for runtime in ("shared", "static"):
            with self.subTest(runtime=runtime), tempfile.TemporaryDirectory() as folder:
                program = Path(folder) / "kernel"
                words = [*NVCC, "-std=c++17", f"-cudart={runtime}", "-arch=native", "-o", str(program)]
                subprocess.run([*words, str(HERE / "programs" / "kernel.cu")], check=True)
                self.is_served(program)

    def test_cublas(self) -> None:
        self.is_served(sys.executable, "-c", CUBLAS)

    @unittest.skipUnless(importlib.util.find_spec("cupy"), "CuPy is not installed")
    def test_cupy(self) -> None:
        self.is_served(sys.executable, "-c", CUPY)


if __name__ == "__main__":
    unittest.main()
