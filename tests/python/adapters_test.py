"""Arrays of other packages in Spillway's memory, on the late simulated device.

Numba is the real one. CuPy's wheel has NVIDIA's runtime built in, which the simulated driver does not serve, so the
adapter meets the classes of CuPy that it uses, as CuPy documents them.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
import types
import unittest
from pathlib import Path
from typing import Any

from spillway._counters import stats
from spillway._library import check, library

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
MIB = 1 << 20


def on_late_device(*words: str, conf: str = "") -> subprocess.CompletedProcess[str]:
    """A program of its own: a process has one memory manager."""
    environment = {**os.environ, "SPILLWAY_SIM": "completion:run-ahead", "SPILLWAY_CONF": conf}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)


class Numba(unittest.TestCase):
    START = (
        "import ctypes, gc, numpy\n"
        "from numba import cuda\n"
        "from spillway.compat.numba import MemoryManager\n"
        "from spillway._counters import stats\n"
        "cuda.set_memory_manager(MemoryManager)\n"
    )

    def run_program(self, text: str, conf: str = "") -> None:
        done = on_late_device("-c", self.START + text, conf=conf)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_example_runs_and_no_array_is_handed_out_early(self) -> None:
        done = on_late_device(str(EXAMPLES / "numba_arrays.py"), "30")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("30 arrays; ", done.stdout)

    def test_the_variable_of_numba_names_it(self) -> None:
        environment = {**os.environ, "NUMBA_CUDA_MEMORY_MANAGER": "spillway.compat.numba"}
        text = "from numba import cuda; print(type(cuda.current_context().memory_manager).__module__)"
        done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "spillway.compat.numba\n")

    def test_arrays_are_counted_and_go_back(self) -> None:
        self.run_program(
            "array = cuda.device_array(1 << 20, numpy.uint8)\n"
            "assert stats(0)['requested_bytes']['all']['current'] == 1 << 20\n"
            "assert cuda.device_array(0, numpy.uint8).size == 0\n"
            "view = array[100:200]; del array; gc.collect()\n"
            "assert stats(0)['requested_bytes']['all']['current'] == 1 << 20\n"
            "del view; gc.collect(); cuda.current_context().memory_manager.deallocations.clear()\n"
            "assert stats(0)['requested_bytes']['all']['current'] == 0\n"
        )

    def test_frees_that_are_collected_serve_before_memory_runs_out(self) -> None:
        self.run_program(
            "for _ in range(9): cuda.device_array(10 << 20, numpy.uint8)\n"
            "try: cuda.device_array(65 << 20, numpy.uint8)\n"
            "except cuda.cudadrv.driver.CudaAPIError as error:\n"
            "  assert error.code == 2 and 'Tried to allocate 65.00 MiB' in str(error), error\n"
            "else: raise SystemExit('memory beyond the limit')\n",
            conf="limit:32MiB",
        )

    def test_ipc_is_refused_in_words(self) -> None:
        self.run_program(
            "from spillway import SpillwayError\n"
            "try: cuda.device_array(10, numpy.uint8).get_ipc_handle()\n"
            "except SpillwayError as error: assert 'spw_ipc_get_handle' in str(error)\n"
            "else: raise SystemExit('a handle of what?')\n"
        )


class UnownedMemory:
    """cupy.cuda.UnownedMemory: memory that is kept by a reference to its owner."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    """cupy.cuda.MemoryPointer: a place in memory, which it keeps."""

    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


class OutOfMemoryError(MemoryError):
    """cupy.cuda.memory.OutOfMemoryError."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        super().__init__(f"{size} {total} {limit}")


def documented_cupy(stream: types.SimpleNamespace) -> Any:
    module: Any = types.ModuleType("cupy")
    module.cuda = types.SimpleNamespace(
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        device=types.SimpleNamespace(get_device_id=lambda: 0),
        get_current_stream=lambda: stream,
        runtime=types.SimpleNamespace(free=lambda _: start_device()),
    )
    return module


def start_device() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    return driver


class CuPy(unittest.TestCase):
    adapter: Any
    stream = types.SimpleNamespace(ptr=0)

    @classmethod
    def setUpClass(cls) -> None:
        driver = start_device()
        made = ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
        cls.stream.ptr = made.value
        sys.modules["cupy"] = documented_cupy(cls.stream)
        cls.adapter = importlib.import_module("spillway.compat.cupy")

    @classmethod
    def tearDownClass(cls) -> None:
        del sys.modules["cupy"]

    def test_memory_is_of_the_current_stream_and_goes_with_its_last_reference(self) -> None:
        pointer = self.adapter.allocate(MIB)
        part = MemoryPointer(pointer.mem, 512)
        self.assertEqual((pointer.mem.size, pointer.mem.device_id), (MIB, 0))
        owner = ctypes.c_void_p()
        check(library().spw_find_owner(ctypes.c_void_p(pointer.ptr), ctypes.byref(owner), None))
        self.assertEqual(owner.value, self.stream.ptr)
        del pointer
        self.assertEqual(stats(0)["requested_bytes"]["all"]["current"], MIB)
        del part
        self.assertEqual(stats(0)["requested_bytes"]["all"]["current"], 0)
        self.assertEqual(self.adapter.allocate(0).ptr, 0)

    def test_the_first_array_of_a_process_makes_the_context(self) -> None:
        done = on_late_device(
            "-c",
            f"import sys, types; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "from adapters_test import documented_cupy\n"
            "sys.modules['cupy'] = documented_cupy(types.SimpleNamespace(ptr=0))\n"
            "from spillway.compat.cupy import allocate\n"
            "assert allocate(1 << 20).ptr\n",
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_want_of_memory_is_cupys_error_with_the_report(self) -> None:
        check(library().spw_set_limit(0, 8 * MIB))
        try:
            with self.assertRaises(OutOfMemoryError) as caught:
                self.adapter.allocate(9 * MIB)
            self.assertIn("Tried to allocate 9.00 MiB", str(caught.exception))
        finally:
            check(library().spw_set_limit(0, (1 << 64) - 1))


if __name__ == "__main__":
    unittest.main()
