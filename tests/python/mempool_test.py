"""A pool of Spillway's memory beside PyTorch's own allocator."""

from __future__ import annotations

import gc
import importlib
import unittest
from typing import Any

import spillway
import warm
from spillway import _counters

torch: Any = importlib.import_module("torch")

MIB = 1 << 20


def mebibytes(count: int) -> Any:
    return torch.empty(count * MIB, dtype=torch.uint8, device="cuda")


def spillway_bytes() -> int:
    count: int = _counters.stats(0)["allocated_bytes"]["all"]["current"]
    return count


def is_spillways(tensor: Any) -> bool:
    segments = _counters.segments(0, lambda _: True)
    return any(0 <= tensor.data_ptr() - row["address"] < row["total_size"] for row in segments)


class Regions(unittest.TestCase):
    def test_inside_is_spillways_and_outside_is_not(self) -> None:
        self.assertFalse(spillway.installed())
        pool = torch.cuda.MemPool(spillway.mempool_allocator())
        before = torch.cuda.memory_allocated()
        outside = mebibytes(3)
        self.assertEqual(spillway_bytes(), 0)
        with torch.cuda.use_mem_pool(pool):
            inside = mebibytes(3)
        after = mebibytes(3)
        self.assertEqual([is_spillways(tensor) for tensor in (outside, inside, after)], [False, True, False])
        # PyTorch counts the tensors, Spillway the pool's segments.
        self.assertEqual(torch.cuda.memory_allocated() - before, 9 * MIB)
        self.assertEqual(spillway_bytes(), sum(segment["total_size"] for segment in pool.snapshot()))
        source = torch.arange(1000)
        with torch.cuda.use_mem_pool(pool):
            self.assertTrue(torch.equal(source.cuda().cpu(), source))

        del inside, pool
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(spillway_bytes(), 0)

    def test_two_pools_of_one_allocator(self) -> None:
        allocator = spillway.mempool_allocator()
        pools = [torch.cuda.MemPool(allocator) for _ in range(2)]
        tensors = []
        for pool in pools:
            with torch.cuda.use_mem_pool(pool):
                tensors.append(mebibytes(30))
        self.assertTrue(all(is_spillways(tensor) for tensor in tensors))
        self.assertEqual(spillway_bytes(), 60 * MIB)
        del tensors, pools, pool
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(spillway_bytes(), 0)

    def test_out_of_memory_is_pytorchs(self) -> None:
        total = torch.cuda.get_device_properties(0).total_memory
        pool = torch.cuda.MemPool(spillway.mempool_allocator())
        with torch.cuda.use_mem_pool(pool):
            with self.assertRaisesRegex(torch.OutOfMemoryError, "^CUDA out of memory"):
                torch.empty(2 * total, dtype=torch.uint8, device="cuda")
            self.assertTrue(is_spillways(mebibytes(1)))
        self.assertGreater(_counters.stats(0)["num_ooms"], 0)  # later releases ask twice

    def test_disabled(self) -> None:
        code = "import spillway; print(spillway.mempool_allocator())"
        done = warm.run(code, SPILLWAY_DISABLE="1", SPILLWAY_LIBRARY="/nowhere")
        self.assertEqual(done.stdout.strip(), "None", done.stderr)


if __name__ == "__main__":
    unittest.main()
