"""What PyTorch's tests demand of pinned memory."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from pytorch_demands import (
    MIB,
    Case,
    Table,  # noqa: F401
    change,
    main,
    output,
    pinned,
    torch,
)


class PinnedMemory(Case):
    def test_a_freed_block_serves_again(self) -> None:
        block = torch.zeros(1).pin_memory()
        address = block.data_ptr()
        del block
        self.assertEqual(torch.zeros(1).pin_memory().data_ptr(), address)

    def test_one_that_is_copied_from_does_not(self) -> None:
        block = torch.ones(1).pin_memory()
        address = block.data_ptr()
        there = torch.zeros(1, device="cuda")
        there.copy_(block, non_blocking=True)
        del block
        other = torch.zeros(1).pin_memory()
        self.assertNotEqual(other.data_ptr(), address)
        self.assertEqual(there.tolist(), [1])

    def test_one_that_is_copied_from_by_another_device_does_not(self) -> None:
        code = """
import torch
torch.cuda.init()
block = torch.ones(1 << 20).pin_memory()
address = block.data_ptr()
there = torch.zeros(1 << 20, device="cuda:1")
there.copy_(block, non_blocking=True)
del block
print(torch.zeros(1 << 20).pin_memory().data_ptr() == address, bool((there.cpu() == 1).all()))
"""
        self.assertEqual(output(code, SPILLWAY_SIM="devices:2,completion:run-ahead"), "False True")

    def test_a_view_is_pinned_and_copied_from_where_it_begins(self) -> None:
        base = torch.arange(100_000, dtype=torch.int32).pin_memory()
        view = base[1:]
        self.assertTrue(view.is_pinned())
        there = torch.zeros(99_999, dtype=torch.int32, device="cuda")
        there.copy_(view, non_blocking=True)
        self.assertTrue(torch.equal(there.cpu(), view))
        there.copy_(torch.zeros(99_999, dtype=torch.int32))
        view.copy_(there, non_blocking=True)
        torch.cuda.synchronize()
        self.assertEqual((base[0].item(), int(base.abs().sum())), (0, 0))

    def test_what_is_not_contiguous_is_pinned_as_it_is_seen(self) -> None:
        across = torch.arange(10).view(2, 5).t()
        self.assertTrue(torch.equal(across.pin_memory(), across))

    def test_only_a_copy_that_does_not_wait_is_into_pinned_memory(self) -> None:
        there = torch.zeros(1_000_000, device="cuda")
        self.assertTrue(there.to("cpu", non_blocking=True).is_pinned())
        self.assertFalse(there.to("cpu").is_pinned())

    def test_memory_that_the_program_registers_is_pinned(self) -> None:
        numbers, runtime = torch.ones(20), torch.cuda.cudart()
        self.assertFalse(numbers.is_pinned())
        self.assertEqual(int(runtime.cudaHostRegister(numbers.data_ptr(), numbers.nbytes, 0)), 0)
        self.assertTrue(numbers.is_pinned())
        self.assertEqual(int(runtime.cudaHostUnregister(numbers.data_ptr())), 0)
        self.assertFalse(numbers.is_pinned())

    def test_it_is_pinned_by_registering_too_on_many_threads(self) -> None:
        found: list[bool] = []

        def pin() -> None:
            change("pinned_use_cuda_host_register:True,pinned_num_register_threads:8")
            found.extend(torch.ones(1 << power).pin_memory().is_pinned() for power in (4, 21, 23))

        self.addCleanup(change, "pinned_use_cuda_host_register:False")
        threads = [threading.Thread(target=pin) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [True] * 12)
        torch._C._host_emptyCache()

    def test_counters_are_of_blocks_asked_for_and_of_blocks_held(self) -> None:
        code = """
import json, torch
torch.cuda.init()
first, second = (torch.empty(size << 10, dtype=torch.uint8, pin_memory=True) for size in (40, 80))
held = torch.cuda.host_memory_stats()
del first, second
freed = torch.cuda.host_memory_stats()
torch._C._host_emptyCache()
print(json.dumps([held, freed, torch.cuda.host_memory_stats()]))
"""
        held, freed, stats = json.loads(output(code))
        self.assertEqual([held[f"active_requests.{kind}"] for kind in ("current", "peak", "allocated")], [2, 2, 2])
        for key in ("allocations.current", "allocated_bytes.current", "num_host_free"):
            self.assertEqual(freed[key], held[key])
        self.assertEqual(stats["num_host_free"], stats["num_host_alloc"])
        self.assertEqual((stats["allocations.current"], stats["allocated_bytes.current"]), (0, 0))
        self.assertEqual(stats["allocated_bytes.freed"], stats["allocated_bytes.allocated"])
        self.assertGreaterEqual(stats["allocated_bytes.peak"], 120 << 10)

    @contextlib.contextmanager
    def captured(self, pool: Any = None) -> Iterator[Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield graph

    def test_in_a_capture_two_live_blocks_are_two(self) -> None:
        with self.captured():
            first, second = pinned(64), pinned(64)
        self.assertNotEqual(first.data_ptr(), second.data_ptr())

    def test_in_a_capture_a_freed_block_that_nothing_used_serves_again(self) -> None:
        with self.captured():
            block = pinned(64)
            address = block.data_ptr()
            del block
            again = pinned(64)
        self.assertEqual(again.data_ptr(), address)

    def test_then_blocks_one_after_another_hold_no_more_than_one(self) -> None:
        torch._C._host_emptyCache()
        before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
        with self.captured():
            for tenths in (30, 30, 25, 28, 30, 29):
                pinned(tenths * MIB // 10)
            held = torch.cuda.host_memory_stats()["allocated_bytes.current"] - before
        self.assertLessEqual(held, 4 * MIB)

    def test_what_a_captured_copy_reads_serves_nothing_else(self) -> None:
        for shares in (False, True):
            pool = torch.cuda.graph_pool_handle()
            with self.captured(pool) as graph:
                block = pinned(64)
                there = torch.empty(64, dtype=torch.uint8, device="cuda")
                there.copy_(block, non_blocking=True)
                address = block.data_ptr()
                del block
                others = [pinned(64)]
            with self.captured(pool if shares else None):
                others += [pinned(64) for _ in range(3)]
            self.assertNotIn(address, [other.data_ptr() for other in others])
            graph.replay()
            torch.cuda.synchronize()

    def test_two_graphs_of_one_pool_share_a_block_that_nothing_used(self) -> None:
        pool = torch.cuda.graph_pool_handle()
        with self.captured(pool):
            block = pinned(64)
            address = block.data_ptr()
            del block
        with self.captured(pool):
            again = pinned(64)
        self.assertEqual(again.data_ptr(), address)


if __name__ == "__main__":
    main()
