"""What the tests of PyTorch's demands share: those of its own allocator tests, by their ideas, that no other test has.

SPILLWAY_TEST_ALLOCATOR=native runs the same programs on PyTorch's own, which judges the tests and the simulated device.
README.md says of each demand which test shows it. Kernels compute nothing on that device: only fills and copies have
bytes.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import unittest
import warnings
from pathlib import Path
from typing import Any

NATIVE = os.environ.get("SPILLWAY_TEST_ALLOCATOR") == "native"
# Work is not complete before the host waits for it.
os.environ.setdefault("SPILLWAY_SIM", "capacity:1GiB,completion:run-ahead")

import spillway  # noqa: E402
import warm  # noqa: E402
from spillway import sim  # noqa: E402
from spillway._library import check, library  # noqa: E402

torch: Any = importlib.import_module("torch")
memory: Any = torch.cuda.memory
viewer: Any = importlib.import_module("torch.cuda._memory_viz")

KIB, MIB = 1 << 10, 1 << 20
INSTALL = "" if NATIVE else "import spillway; spillway.install(pinned_memory=True)\n"


def bytes_of(count: int) -> Any:
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def mebibytes(count: int) -> Any:
    return bytes_of(count * MIB)


def pinned(count: int) -> Any:
    return torch.empty(count, dtype=torch.uint8, pin_memory=True)


def stat(name: str) -> int:
    return int(torch.cuda.memory_stats()[name])


def active_bytes() -> int:
    return stat("active_bytes.all.current")


def change(settings: str) -> None:
    """What a setting changes is not what is asked here, so no remark on it either."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory._set_allocator_settings(settings)


def segments_of(pool: Any) -> list[dict[str, Any]]:
    return [segment for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] == tuple(pool)]


def live_blocks(pool: Any) -> dict[int, int]:
    blocks = [block for segment in segments_of(pool) for block in segment["blocks"]]
    return {block["address"]: block["size"] for block in blocks if block["state"] == "active_allocated"}


def output(code: str, **environment: str) -> str:
    """Of a program in a process that has imported torch, and installs Spillway where it is judged."""
    done = warm.run(INSTALL + code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def native_alone(test: Any) -> Any:
    """PyTorch's own passes it and Spillway does not, for a reason that README.md gives. It fails once Spillway does."""
    return test if NATIVE else unittest.expectedFailure(test)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_memory_stats()

    def tearDown(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        if not NATIVE:
            check(library().spw_validate(0))
        found = sim.reports()
        sim.clear_reports()
        self.assertEqual(found, [])

    def limit(self, more_bytes: int) -> None:
        """Beyond what is reserved now."""
        total = torch.cuda.get_device_properties(0).total_memory
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more_bytes) / total)


class Table(unittest.TestCase):
    """Of the program that imports it."""

    def test_each_test_has_its_row_and_says_where_it_differs(self) -> None:
        judged = vars(sys.modules["__main__"])
        lines = Path(__file__).with_name("README.md").read_text().splitlines()
        rows = [cells for cells in (line.split(" | ") for line in lines) if len(cells) == 5]
        self.assertGreater(len(rows), 100)
        cases = [case for case in judged.values() if isinstance(case, type) and issubclass(case, Case)]
        tests = {f"{case.__name__}.{name}": getattr(case, name) for case in cases for name in vars(case)}
        tests = {name: test for name, test in tests.items() if ".test_" in name}
        shown = {
            name: cells for cells in rows for name in re.findall(r"`(\w+\.\w+)`", cells[1]) if ".py" not in cells[1]
        }
        self.assertEqual({name for name in shown if name.split(".")[0] in judged}, set(tests))
        if not NATIVE:
            differing = {name for name, test in tests.items() if getattr(test, "__unittest_expecting_failure__", False)}
            self.assertEqual({name for name in tests if shown[name][3] == "no"}, differing)
        for cells in rows:
            self.assertTrue(cells[3] != "no" or len(cells[4]) > 20, cells)


def main() -> None:
    if not NATIVE:
        assert spillway.install("full", pinned_memory=True)
    sim.touch_operands()
    torch.cuda.init()
    unittest.main()
