"""What both integrations answer alike. A test program installs one of them, then imports these tests."""

from __future__ import annotations

import gc
import importlib
import json
import pickle
import tempfile
import unittest
from pathlib import Path
from typing import Any

import spillway
from spillway._counters import pool_bytes
from spillway._library import check, library
from spillway._pytorch.releases import later_stats, settings_name

torch: Any = importlib.import_module("torch")

MIB = 1 << 20
MOST_BYTES = 2 << 30
# The names of torch.cuda.memory_stats().
POOLED = [
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
]
COUNTS = ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"]


def mebibytes(count: int) -> Any:
    return torch.empty(count * MIB, dtype=torch.uint8, device="cuda")


class Memory(unittest.TestCase):
    def setUp(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def limit(self) -> int:
        """Keeps the test to so many bytes: a GPU takes long to hand out much, and others may use it too."""
        fraction, total = 0.25, int(torch.cuda.get_device_properties(0).total_memory)
        while fraction * total > MOST_BYTES:
            fraction /= 2
        torch.cuda.set_per_process_memory_fraction(fraction)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        return int(fraction * total)


class Counters(Memory):
    def test_allocated_goes_up_and_down(self) -> None:
        before = torch.cuda.memory_allocated()
        tensor = mebibytes(3)
        self.assertEqual(torch.cuda.memory_allocated() - before, 3 * MIB)
        self.assertGreaterEqual(torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
        del tensor
        self.assertEqual(torch.cuda.memory_allocated(), before)
        self.assertEqual(torch.cuda.max_memory_allocated() - before, 3 * MIB)
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(torch.cuda.max_memory_allocated(), before)

    def test_every_key_of_the_native_allocator_is_there(self) -> None:
        stats = torch.cuda.memory_stats()
        for metric in POOLED:
            for pool in ("all", "small_pool", "large_pool"):
                for kind in ("current", "peak", "allocated", "freed"):
                    self.assertIn(f"{metric}.{pool}.{kind}", stats)
        for name in COUNTS:
            self.assertIn(name, stats)

    def test_they_are_those_of_the_library(self) -> None:
        kept = mebibytes(3)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "dump.json"
            check(library().spw_dump(str(path).encode(), None))
            expected = json.loads(path.read_text())["devices"][0]["stats"]
        stats = torch.cuda.memory_stats_as_nested_dict()
        self.assertEqual(stats, {name: expected.get(name, later_stats(torch, 0).get(name)) for name in stats})
        self.assertGreater(stats["allocated_bytes"]["all"]["current"], 0)
        del kept

    def test_summary(self) -> None:
        kept = mebibytes(5)
        for abbreviated in (False, True):
            self.assertIn("Allocated memory", torch.cuda.memory_summary(abbreviated=abbreviated))
        self.assertRegex(torch.cuda.memory_summary(), r"Allocated memory +\| +\d+ KiB \|")
        del kept

    def test_accumulated_counts_start_again(self) -> None:
        mebibytes(2)
        torch.cuda.reset_accumulated_memory_stats()
        stats = torch.cuda.memory_stats()
        self.assertEqual((stats["allocation.all.allocated"], stats["allocation.all.freed"]), (0, 0))

    def test_empty_cache_gives_back(self) -> None:
        for empty_cache in (torch.cuda.empty_cache, torch.accelerator.empty_cache):
            before = torch.cuda.memory_reserved()
            tensor = mebibytes(64)
            del tensor
            self.assertGreaterEqual(torch.cuda.memory_reserved(), before + 60 * MIB)
            empty_cache()
            self.assertLessEqual(torch.cuda.memory_reserved(), before)

    def test_accelerator_says_the_same(self) -> None:
        self.limit()
        gone = mebibytes(9)
        tensor = mebibytes(5)
        del gone
        self.assertEqual(torch.accelerator.memory_allocated(), torch.cuda.memory_allocated())
        self.assertGreaterEqual(torch.accelerator.memory_allocated(), 5 * MIB)
        self.assertEqual(torch.accelerator.memory_reserved(), torch.cuda.memory_reserved())
        if hasattr(torch.accelerator, "get_memory_info"):  # since 2.10
            self.assertEqual(torch.accelerator.get_memory_info(), torch.cuda.mem_get_info())
        torch.accelerator.reset_peak_memory_stats()
        self.assertEqual(torch.accelerator.max_memory_allocated(), torch.cuda.memory_allocated())
        torch.accelerator.reset_accumulated_memory_stats()
        self.assertEqual(torch.accelerator.memory_stats()["allocation.all.allocated"], 0)
        del tensor


class OutOfMemory(Memory):
    def test_type_and_text(self) -> None:
        total = torch.cuda.get_device_properties(0).total_memory
        before = torch.cuda.memory_stats()["num_ooms"]
        for _ in range(3):
            with self.assertRaises(torch.OutOfMemoryError) as caught:
                torch.empty(2 * total, dtype=torch.uint8, device="cuda")
            self.assertTrue(str(caught.exception).startswith("CUDA out of memory"), str(caught.exception))
            self.assertIn("\n  reserved ", str(caught.exception))
        self.assertEqual(torch.cuda.memory_stats()["num_ooms"], before + 3)
        self.assertNotEqual(mebibytes(1).data_ptr(), 0)

    def test_fraction(self) -> None:
        self.assertEqual(torch.cuda.get_per_process_memory_fraction(), 1.0)
        torch.cuda.set_per_process_memory_fraction(0.25)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        self.assertEqual(torch.cuda.get_per_process_memory_fraction(), 0.25)
        total = torch.cuda.get_device_properties(0).total_memory
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(total // 2, dtype=torch.uint8, device="cuda")
        with self.assertRaises(ValueError):
            torch.cuda.set_per_process_memory_fraction(1.5)

    def test_what_is_free_is_within_the_fraction(self) -> None:
        limit = self.limit()
        free, total = torch.cuda.mem_get_info()
        self.assertLessEqual(free + torch.cuda.memory_reserved(), limit)
        for ask in (torch.cuda.mem_get_info, getattr(torch.accelerator, "get_memory_info", torch.cuda.mem_get_info)):
            self.assertEqual(ask(0), (free, total))
        self.assertEqual(torch.cuda.cudart().cudaMemGetInfo(0), (free, total))
        block = torch.empty(free, dtype=torch.uint8, device="cuda")
        left = torch.cuda.mem_get_info()[0]
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(left + torch.cuda.memory_reserved(), dtype=torch.uint8, device="cuda")
        del block
        # A lower one takes back what is cached.
        torch.cuda.set_per_process_memory_fraction(limit / 2 / total)
        self.assertLessEqual(torch.cuda.memory_reserved(), limit // 2)
        self.assertLessEqual(torch.cuda.mem_get_info()[0], limit // 2)


class Settings(Memory):
    def change(self, text: str) -> None:
        getattr(torch._C, settings_name(torch))(text)

    def test_what_is_changed_while_running_is_answered(self) -> None:
        with self.assertWarnsRegex(spillway.SpillwayWarning, "expandable_segments changes nothing"):
            self.change("expandable_segments:True")
        with self.assertRaisesRegex(spillway.SpillwayError, "cudaMallocAsync"):
            self.change("backend:cudaMallocAsync")
        with self.assertRaisesRegex(ValueError, "no_such_key"):
            self.change("no_such_key:1")

    def test_the_fraction_is_a_limit(self) -> None:
        total = torch.cuda.get_device_properties(0).total_memory
        self.change("per_process_memory_fraction:0.25")
        self.addCleanup(self.change, "per_process_memory_fraction:1.0")
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(total // 2, dtype=torch.uint8, device="cuda")
        for wrong in ("7", "-1", "much", ""):
            with self.assertRaisesRegex(spillway.SpillwayError, "allowed: a number from 0 to 1"):
                self.change(f"per_process_memory_fraction:{wrong}")


class Snapshots(Memory):
    def test_segments_add_up(self) -> None:
        tensors = [mebibytes(count) for count in (1, 3, 5)]
        segments = torch.cuda.memory_snapshot()
        self.assertEqual(sum(segment["total_size"] for segment in segments), torch.cuda.memory_reserved())
        for segment in segments:
            self.assertEqual(sum(block["size"] for block in segment["blocks"]), segment["total_size"])
        states = {block["address"]: block["state"] for segment in segments for block in segment["blocks"]}
        for tensor in tensors:
            self.assertEqual(states[tensor.data_ptr()], "active_allocated")

    def test_a_dump_is_what_the_viewer_reads(self) -> None:
        tensor = mebibytes(2)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.pickle"
            torch.cuda.memory._dump_snapshot(str(path))
            snapshot = pickle.loads(path.read_bytes())
        self.assertEqual(sum(s["total_size"] for s in snapshot["segments"]), torch.cuda.memory_reserved())
        self.assertIn("limit:", snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"])
        viewer: Any = importlib.import_module("torch.cuda._memory_viz")
        self.assertIn("<!DOCTYPE html>", viewer.segment_plot(snapshot))
        del tensor


class Graphs(Memory):
    def test_a_capture_is_served_with_what_is_free_and_nothing_goes_back_before_it(self) -> None:
        def capture(size: int) -> Any:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = mebibytes(size)
            return graph, kept

        largest = mebibytes(300)
        pieces = [mebibytes(20) for _ in range(5)]
        del largest
        del pieces[::2]
        held = torch.cuda.memory_reserved()
        graphs = [capture(300), capture(40)]
        # PyTorch has a few words of its own in each.
        self.assertLessEqual(torch.cuda.memory_reserved(), held + 4 * MIB)
        check(library().spw_validate(0))
        del graphs, pieces
        torch.cuda.empty_cache()
        self.assertLess(torch.cuda.memory_reserved(), 100 * MIB)

    def test_what_the_pool_of_a_graph_holds_is_counted(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = mebibytes(5) + 1
        # Its keys are pairs where PyTorch has the statistic, as of 2.13.
        pools = torch.cuda.memory_stats_as_nested_dict().get("reserved_bytes_by_private_pools", pool_bytes(0))
        held = pools[graph.pool()]["all"]
        segments = [row for row in torch.cuda.memory_snapshot() if row["segment_pool_id"] == graph.pool()]
        self.assertEqual(held["current"], sum(segment["total_size"] for segment in segments))
        self.assertGreaterEqual(held["peak"], 10 * MIB)
        self.assertEqual(held["allocated"] - held["freed"], held["current"])
        pool = graph.pool()
        del kept
        graph.reset()
        self.assertEqual(pool_bytes(0)[pool]["all"]["current"], 0)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        self.assertNotIn(pool, pool_bytes(0))

    def test_graphed_callables(self) -> None:
        layer = torch.nn.Linear(32, 32).cuda()
        graphed = torch.cuda.make_graphed_callables(layer, (torch.zeros(4, 32, device="cuda", requires_grad=True),))
        graphed(torch.zeros(4, 32, device="cuda", requires_grad=True)).sum().backward()


class Blocks(Memory):
    def test_size_zero(self) -> None:
        empty = torch.empty(0, device="cuda")
        self.assertEqual(empty.data_ptr(), 0)
        empty.record_stream(torch.cuda.Stream())

    def test_memory_of_the_caller(self) -> None:
        before = torch.cuda.memory_allocated()
        address = torch.cuda.caching_allocator_alloc(MIB)
        self.assertEqual(torch.cuda.memory_allocated() - before, MIB)
        torch.cuda.caching_allocator_delete(address)
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_bytes_go_there_and_back(self) -> None:
        source = torch.arange(100_000)
        self.assertTrue(torch.equal(source.cuda().clone().cpu(), source))
        pinned = source.pin_memory()
        self.assertTrue(torch.equal(pinned.cuda(non_blocking=True).cpu(), source))
