"""Programs that call CUDA after the driver's own end: from exit handlers, destructors and other threads."""

from __future__ import annotations

import sys
import textwrap
import unittest
from pathlib import Path

from under import PRELOAD, PROGRAMS, Run, run

SIMULATED = "capacity:4GiB,at_exit:end"
BLOCKS = 2 * 600


class Ended(unittest.TestCase):
    def case(self, name: str, blocks: int | None = BLOCKS, preload: list[Path] | None = None, **variables: str) -> Run:
        done = run(PROGRAMS / "preload_ended", name, preload=preload, simulated=SIMULATED, **variables)
        self.assertEqual((done.code, done.out, done.err), (7, "handled\ndestroyed\n", ""))
        if blocks is not None:
            self.assertEqual(done.served(), blocks)
        return done

    def test_the_program_is_one_that_ends_well(self) -> None:
        self.case("handlers", blocks=0, preload=[])

    def test_exit_handlers_and_destructors(self) -> None:
        """The dump is of before that: what they free is in use in it."""
        done = self.case("handlers")
        self.assertEqual(done.stats()["allocation"]["all"]["current"], BLOCKS)

    def test_the_context_is_reset(self) -> None:
        self.case("reset")

    def test_only_destructors_leave_the_device(self) -> None:
        self.case("destructor")

    def test_threads_that_go_on(self) -> None:
        self.case("threads", blocks=None)

    def test_whatever_else_runs_beside_the_program(self) -> None:
        for conf in ("idle_after:100ms,evict_above:1MiB", "live_interval:1", "backend:malloc", "preload_ipc:plain"):
            with self.subTest(conf):
                self.case("threads", blocks=None, SPILLWAY_CONF=conf)

    def test_python(self) -> None:
        """Which frees what its modules hold when it is nearly gone itself."""
        program = textwrap.dedent(
            """
            import atexit, ctypes, os
            driver = ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"])
            context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
            assert driver.cuInit(0) == 0
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert driver.cuCtxSetCurrent(context) == 0
            class Block:
                def __init__(self):
                    self.pointer = ctypes.c_uint64()
                    assert driver.cuMemAlloc_v2(ctypes.byref(self.pointer), ctypes.c_size_t(1 << 20)) == 0
                def __del__(self):
                    driver.cuMemFree_v2(self.pointer)
            kept = [Block() for _ in range(20)]
            raise SystemExit(5)
            """
        )
        done = run(sys.executable, "-c", program, preload=[PRELOAD], simulated=SIMULATED)
        self.assertEqual((done.code, done.err), (5, ""))
        self.assertEqual(done.served(), 20)


if __name__ == "__main__":
    unittest.main()
