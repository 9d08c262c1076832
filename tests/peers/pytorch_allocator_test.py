"""What PyTorch's own tests demand of its allocators and no other test of the project does, by their ideas.

SPILLWAY_TEST_ALLOCATOR=native runs the same program on PyTorch's own, which judges the tests and the simulated device.
README.md says of each demand which test shows it. Kernels compute nothing on that device: only fills and copies have
bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pickle
import random
import re
import threading
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

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
HERE = Path(__file__).name
PICKLED = "_ZN5torch4cuda24_memory_snapshot_pickledB5cxx11Ev"  # torch::cuda::_memory_snapshot_pickled()
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


# ---- Counters and errors


class Counters(Case):
    def test_a_block_is_rounded_to_512_bytes_and_its_request_is_not(self) -> None:
        for asked, held in ((1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512), (20 * MIB - 3, 20 * MIB)):
            active, requested = active_bytes(), stat("requested_bytes.all.current")
            block = bytes_of(asked)
            self.assertEqual(active_bytes() - active, held)
            self.assertEqual(stat("requested_bytes.all.current") - requested, asked)
            del block
            self.assertEqual(active_bytes(), active)

    def test_what_was_freed_is_counted_since_the_reset(self) -> None:
        torch.cuda.reset_accumulated_memory_stats()
        block = bytes_of(1024)
        self.assertEqual((stat("active_bytes.all.allocated"), stat("active_bytes.all.freed")), (1024, 0))
        del block
        self.assertEqual((stat("active_bytes.all.allocated"), stat("active_bytes.all.freed")), (1024, 1024))

    def active_in_pools(self, size: int) -> list[int]:
        pools = ("small_pool", "large_pool")
        before = [stat(f"active_bytes.{pool}.current") for pool in pools]
        block = bytes_of(size)
        after = [stat(f"active_bytes.{pool}.current") for pool in pools]
        del block
        return [new - old for new, old in zip(after, before, strict=True)]

    def test_small_and_large_blocks_are_counted_apart(self) -> None:
        self.assertEqual(self.active_in_pools(512), [512, 0])
        self.assertEqual(self.active_in_pools(MIB + 1), [0, MIB + 512])

    @native_alone
    def test_a_block_is_small_up_to_a_mebibyte(self) -> None:
        self.assertEqual(self.active_in_pools(MIB), [MIB, 0])

    def test_before_the_device_is_used_there_are_no_counters(self) -> None:
        code = "import torch; print(len(torch.cuda.memory_stats()), torch.cuda.memory_allocated())"
        self.assertEqual(output(code), "0 0")

    def test_each_device_has_its_own(self) -> None:
        code = """
import torch
kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda:1")
found = [torch.cuda.memory_allocated(device) >> 20 for device in range(2)]
torch.cuda.reset_peak_memory_stats(0)
del kept
print(found, [torch.cuda.max_memory_allocated(device) >> 20 for device in range(2)], torch.cuda.current_device())
"""
        self.assertEqual(output(code, SPILLWAY_SIM="devices:2"), "[0, 3] [0, 3] 0")

    def test_workspaces_of_libraries_are_counted_and_go_when_told_to(self) -> None:
        matrix = torch.zeros(7, 7, device="cuda")
        before = active_bytes()
        torch.matmul(matrix, matrix)
        self.assertGreater(active_bytes() - before, MIB)
        torch._C._cuda_clearCublasWorkspaces()
        self.assertEqual(active_bytes(), before)


class Errors(Case):
    def test_the_text_begins_as_programs_expect(self) -> None:
        with self.assertRaisesRegex(torch.cuda.OutOfMemoryError, r"^CUDA out of memory\. Tried to allocate 80\.00 GiB"):
            bytes_of(80 << 30)

    def test_what_no_device_has_is_out_of_memory(self) -> None:
        with self.assertRaisesRegex(torch.OutOfMemoryError, r"Tried to allocate 800000000\.00 GiB"):
            bytes_of(800000000 << 30)

    @native_alone
    def test_the_rest_of_the_text_is_in_the_same_words(self) -> None:
        with self.assertRaisesRegex(
            torch.OutOfMemoryError, r"GiB\. GPU 0 has a total capacity of 1024\.00 MiB of which"
        ):
            bytes_of(80 << 30)

    def test_more_than_an_exbibyte_is_an_error_of_its_own(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "Tried to allocate more than 1EB memory"):
            bytes_of(8000000000 << 30)

    def test_work_goes_on_after_it(self) -> None:
        kept = torch.zeros(1024, device="cuda")
        with self.assertRaises(torch.OutOfMemoryError):
            mebibytes(1 << 20)
        kept.fill_(1)
        self.assertTrue(bool((kept.cpu() == 1).all()))

    def test_a_request_is_served_once_there_is_room(self) -> None:
        half = torch.cuda.get_device_properties(0).total_memory // 2
        first = bytes_of(half)
        with self.assertRaisesRegex(RuntimeError, "Tried to allocate"):
            bytes_of(half + MIB)
        del first
        self.assertEqual(bytes_of(half + MIB).numel(), half + MIB)

    def test_what_waits_for_another_stream_is_waited_for_first(self) -> None:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            sum_of_all = torch.zeros(160 * MIB // 4, device="cuda")
        for _ in range(20):
            part = torch.empty(160 * MIB // 4, device="cuda")
            with torch.cuda.stream(side):
                sum_of_all.add_(part)
            part.record_stream(side)
            del part

    def test_it_ends_a_capture_and_not_the_program(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(torch.OutOfMemoryError, "out of memory"), torch.cuda.graph(graph):
            mebibytes(1 << 20)
        del graph
        again = torch.cuda.CUDAGraph()
        source = torch.ones(MIB, device="cuda")
        with torch.cuda.graph(again):
            copy = source.clone()
        again.replay()
        self.assertTrue(bool((copy.cpu() == 1).all()))


class Fractions(Case):
    def test_values_that_are_none_are_refused(self) -> None:
        with self.assertRaisesRegex(TypeError, "Invalid type"):
            torch.cuda.set_per_process_memory_fraction(1)
        for wrong in (-0.1, 2.0):
            with self.assertRaisesRegex(ValueError, "Invalid fraction value"):
                torch.cuda.set_per_process_memory_fraction(wrong)
        self.assertEqual(torch.cuda.get_per_process_memory_fraction(), 1.0)

    def test_what_is_set_is_what_is_asked_to_the_byte(self) -> None:
        total = torch.cuda.get_device_properties(0).total_memory
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        dice = random.Random(1)
        for fraction in (1.0, 0.0, 1 / 3, *(dice.random() for _ in range(5))):
            torch.cuda.set_per_process_memory_fraction(fraction)
            self.assertLessEqual(abs(torch.cuda.get_per_process_memory_fraction() - fraction) * total, 1)

    def test_just_below_is_served_and_just_above_is_not(self) -> None:
        total = torch.cuda.get_device_properties(0).total_memory
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        torch.cuda.set_per_process_memory_fraction(0.5)
        self.assertGreater(bytes_of(int(total * 0.499) - torch.cuda.memory_reserved()).numel(), 0)
        torch.cuda.empty_cache()
        with self.assertRaisesRegex(RuntimeError, "out of memory"):
            bytes_of(total // 2 + MIB)


class Settings(Case):
    def test_wrong_ones_are_value_errors(self) -> None:
        for wrong in (
            "foo:1,bar:2",
            "garbage_collection_threshold:1.2",
            "max_split_size_mb:2",
            "release_lock_on_cudamalloc:none",
            "pinned_use_cuda_host_register:none",
            "pinned_num_register_threads:none",
            "pinned_num_register_threads:1024",
        ):
            with self.subTest(wrong), self.assertRaises(ValueError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch._C._accelerator_setAllocatorSettings(wrong)

    def test_one_that_changes_leaves_blocks_that_serve_each_other(self) -> None:
        for other in ("max_split_size_mb:40", "garbage_collection_threshold:0.5"):
            with self.subTest(other):
                self.addCleanup(change, "expandable_segments:False")
                torch.cuda.empty_cache()
                self.limit(120 * MIB)
                held = []
                for expandable in (False, True, False):
                    change(f"expandable_segments:{expandable},{other}")
                    held.append(mebibytes(40))
                with self.assertRaises(torch.OutOfMemoryError):
                    mebibytes(40)
                held.clear()
                self.assertEqual(mebibytes(120).numel(), 120 * MIB)
                torch.cuda.set_per_process_memory_fraction(1.0)

    def test_out_of_memory_is_itself_under_a_largest_size_that_is_split(self) -> None:
        change("max_split_size_mb:1024")
        with self.assertRaises(torch.cuda.OutOfMemoryError):
            mebibytes(4 << 20)

    def test_without_rounding_a_request_has_its_size(self) -> None:
        for settings in (
            "",
            "release_lock_on_cudamalloc:True",
            "garbage_collection_threshold:0.5,max_split_size_mb:40",
        ):
            change(settings)
            before = stat("active_bytes.all.allocated")
            mebibytes(84)
            self.assertEqual(stat("active_bytes.all.allocated") - before, 84 * MIB)


# ---- Blocks


class Blocks(Case):
    def test_no_byte_of_a_live_block_is_changed(self) -> None:
        dice = random.Random(123)
        live: list[tuple[int, Any]] = []
        held = 0
        for step in range(1500):
            if live and (held > 100 * MIB or dice.random() < 0.5):
                value, block = live.pop(dice.randrange(len(live)))
                self.assertTrue(bool((block.cpu() == value).all()))
                held -= block.numel() * 4
            else:
                count = dice.randrange(2 * MIB // 4, 12 * MIB // 4)
                live.append((step, torch.full((count,), step, dtype=torch.int32, device="cuda")))
                held += count * 4
            if dice.random() < 0.05:
                torch.cuda.empty_cache()

    def test_recording_a_stream_on_a_view_is_recording_it_on_the_block(self) -> None:
        side = torch.cuda.Stream()
        for offset in (0, MIB):
            whole = mebibytes(4)
            view, address = whole[offset:], whole.data_ptr()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                view.zero_()
            view.record_stream(side)
            del whole, view
            self.assertNotIn(address, [block.data_ptr() for block in [mebibytes(4) for _ in range(8)]])
            torch.cuda.synchronize()

    def test_a_recorded_block_serves_again_when_its_stream_is_done(self) -> None:
        side = torch.cuda.Stream()
        block = mebibytes(4)
        address = block.data_ptr()
        with torch.cuda.stream(side):
            block.zero_()
        block.record_stream(side)
        del block
        side.synchronize()
        self.assertIn(address, [again.data_ptr() for again in [mebibytes(4) for _ in range(8)]])

    def test_a_saved_tensor_comes_back_with_what_shares_its_storage(self) -> None:
        numbers = torch.arange(10).cuda()
        file = io.BytesIO()
        torch.save([numbers, numbers[2:]], file)
        file.seek(0)
        whole, part = torch.load(file)
        self.assertTrue(whole.is_cuda)
        self.assertTrue(torch.equal(whole.cpu(), torch.arange(10)))
        whole.copy_(torch.arange(10, 20))
        self.assertTrue(torch.equal(part.cpu(), torch.arange(12, 20)))

    def test_a_trace_of_the_device_is_told_of_each_block(self) -> None:
        """In a process of its own: what is registered stays."""
        code = """
import torch
from torch.utils import _cuda_trace as trace
torch.cuda.init()
seen = []
torch._C._activate_gpu_trace()
trace.register_callback_for_memory_allocation(lambda address: seen.append(("alloc", address)))
trace.register_callback_for_memory_deallocation(lambda address: seen.append(("free", address)))
block = torch.empty(1 << 20, device="cuda")
address = block.data_ptr()
del block
print(seen == [("alloc", address), ("free", address)])
"""
        if importlib.util.find_spec("torch.utils._cuda_trace") is None:
            code = code.replace("torch.utils import _cuda_trace as", "torch.cuda import _gpu_trace as")
        self.assertEqual(output(code), "True")

    def test_the_first_use_imports_no_compiler(self) -> None:
        code = "import sys, torch; torch.empty(2, device='cuda'); print('triton' in sys.modules)"
        self.assertEqual(output(code), "False")


class BeforeTheDevice(Case):
    def test_the_device_is_not_begun_before_its_first_use(self) -> None:
        code = """
import ctypes, torch
count = ctypes.c_int()
print(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)))
"""
        not_initialised = 3
        self.assertEqual(output(code), str(not_initialised))

    def test_devices_may_be_hidden_until_then(self) -> None:
        code = """
import os, torch
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
torch.empty(10, device="cuda")
print(torch.cuda.device_count())
"""
        self.assertEqual(output(code, SPILLWAY_SIM="devices:2"), "1")

    def test_a_question_about_pinned_memory_spoils_no_fork(self) -> None:
        code = """
import os, torch
torch.zeros(10).is_pinned()
if os.fork() == 0:
    torch.zeros(10).is_pinned()
    print(torch.zeros(10, device="cuda")[0].item(), flush=True)
    os._exit(0)
os.wait()
"""
        self.assertEqual(output(code), "0.0")


# ---- Pinned memory


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

    @native_alone
    def test_in_a_capture_a_freed_block_that_nothing_used_serves_again(self) -> None:
        with self.captured():
            block = pinned(64)
            address = block.data_ptr()
            del block
            again = pinned(64)
        self.assertEqual(again.data_ptr(), address)

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


# ---- History and snapshots


class History(Case):
    def record(self, *arguments: Any, **options: Any) -> None:
        self.addCleanup(memory._record_memory_history, None)
        memory._record_memory_history(None)
        memory._record_memory_history(*arguments, **options)

    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = memory._snapshot()["device_traces"][0]
        return found

    def block_of(self, requested: int) -> dict[str, Any]:
        blocks = [block for segment in memory._snapshot()["segments"] for block in segment["blocks"]]
        found: list[dict[str, Any]] = [block for block in blocks if block["requested_size"] == requested]
        self.assertEqual(len(found), 1)
        return found[0]

    def test_a_block_says_where_it_was_asked_for(self) -> None:
        self.record("state", stacks="python")
        mebibytes(3)
        unused, kept = bytes_of(500_000), bytes_of(511_111)
        dice = random.Random(1)
        small = [bytes_of(512) for _ in range(1000)]
        while small:
            del small[dice.randrange(len(small))]
        bytes_of(2560)
        found = self.block_of(511_111)
        self.assertEqual(found["address"], kept.data_ptr())
        self.assertIn(HERE, [Path(frame["filename"]).name for frame in found["frames"]])
        self.assertTrue(all("frames" in segment for segment in memory._snapshot()["segments"]))
        # What _save_segment_usage() draws; its drawing is done by a program that it downloads.
        self.assertIn(HERE, viewer.segments(memory._snapshot(), lambda lines: lines))
        del unused

    def test_a_block_says_it_of_cpp_too(self) -> None:
        self.record("state", stacks="all")
        kept = bytes_of(311_411)
        self.assertIn("::empty", str(self.block_of(311_411)["frames"]))
        del kept

    def test_a_block_says_it_of_a_script(self) -> None:
        self.record("state", stacks="python")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script = torch.jit.CompilationUnit(
                "def made_by_a_script():\n  return torch.rand([311, 411], device='cuda')\n"
            )
        kept = script.made_by_a_script()
        self.assertEqual(self.block_of(311 * 411 * 4)["frames"][0]["name"], "made_by_a_script")
        del kept

    def test_the_last_event_of_an_emptied_cache_is_of_a_segment(self) -> None:
        self.record("all", stacks="python")
        mebibytes(5)
        torch.cuda.empty_cache()
        actions = [event["action"] for event in self.events() if event["action"] != "snapshot"]
        self.assertIn(actions[-1], ("segment_free", "segment_unmap"))

    def test_stacks_are_of_what_the_context_names(self) -> None:
        def ask() -> Any:
            return bytes_of(12)

        def give_back(held: list[Any]) -> None:
            held.clear()

        for context in ("alloc", "all", "state", None):
            with self.subTest(context=context):
                self.record("all", context=context, stacks="python")
                held = [ask()]
                give_back(held)
                torch.cuda.empty_cache()
                text = json.dumps(memory._snapshot())
                self.assertEqual("ask" in text, context in ("alloc", "all"))
                self.assertEqual("give_back" in text, context == "all")
                self.assertEqual('"empty_cache"' in text, context == "all")

    def test_stacks_may_be_left_out_for_a_while(self) -> None:
        def seen_first() -> Any:
            return bytes_of(16)

        def not_seen() -> Any:
            return bytes_of(12)

        def seen_again() -> Any:
            return bytes_of(16)

        self.record(context="all", stacks="python")
        kept = [seen_first()]
        memory._record_memory_history(context=None)
        kept.append(not_seen())
        memory._record_memory_history(context="all", stacks="python")
        kept.append(seen_again())
        text = json.dumps(memory._snapshot())
        self.assertEqual([name in text for name in ("seen_first", "not_seen", "seen_again")], [True, False, True])

    def test_plots_are_made_of_every_kind_of_stack(self) -> None:
        for context, stacks in (("all", "all"), ("all", "python"), (None, "python")):
            with self.subTest(context=context, stacks=stacks):
                self.record("all", context=context, stacks=stacks)
                bytes_of(65_432)
                snapshot = memory._snapshot()
                text = json.dumps(snapshot)
                for page in (
                    viewer.trace_plot(snapshot),
                    viewer.trace_plot(snapshot, filter_freed=True),
                    viewer.segment_plot(snapshot),
                ):
                    self.assertIn("<!DOCTYPE html>", page)
                self.assertEqual("bytes_of" in text, context is not None)
                self.assertEqual("::empty" in text, stacks == "all")
                self.assertIn("65432", text)

    def test_every_event_has_the_programs_words(self) -> None:
        for context in ("alloc", "all", "state"):
            memory._set_memory_metadata("in words")
            self.record(context=context)
            bytes_of(12)
            torch.cuda.empty_cache()
            memory._set_memory_metadata("")
            found = {event["user_metadata"] for event in self.events() if event["action"] != "snapshot"}
            self.assertEqual(found, {"in words"})

    def test_actions_may_be_left_out(self) -> None:
        everything = {"alloc", "free_requested", "free_completed"}
        for left_out in (["free_requested"], ["free_requested", "free_completed"], ["alloc"], [], None):
            with self.subTest(left_out=left_out):
                self.record(context="all", stacks="python", skip_actions=left_out)
                bytes_of(65_536)
                torch.cuda.synchronize()
                found = {event["action"] for event in self.events()}
                self.assertEqual(found & everything, everything - set(left_out or []))

    def test_events_name_the_compiled_region(self) -> None:
        dynamo: Any = importlib.import_module("torch._dynamo")
        self.addCleanup(dynamo.reset)

        def copy(source: Any) -> Any:
            return source.clone()

        region: Any = torch.compile(copy, backend="eager")
        source = bytes_of(1000)
        self.record(context="all", stacks="python", compile_context=True)
        region(source)
        found = {event["compile_context"] for event in self.events()}
        self.assertIn("Torch-Compiled Region: 0/0", found)

    def test_a_profile_is_drawn_with_its_categories(self) -> None:
        with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as profile:
            numbers = torch.zeros(128, 128, device="cuda")
            numbers.clone()
        self.assertIn("<!DOCTYPE html>", viewer.profile_plot(profile))
        text = json.dumps(viewer._profile_to_snapshot(profile))
        for word in (HERE, "test_a_profile_is_drawn", "category", "65536"):
            self.assertIn(word, text)

    def test_a_snapshot_has_every_key(self) -> None:
        self.record()
        kept = [bytes_of(1000), mebibytes(3)]
        snapshot = memory._snapshot()
        wanted = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream"}
        wanted |= {"segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}
        for segment in snapshot["segments"]:
            self.assertLessEqual(wanted, set(segment))
            self.assertIn(segment["segment_type"], ("small", "large"))
            live = [block["size"] for block in segment["blocks"] if block["state"] == "active_allocated"]
            self.assertEqual(segment["allocated_size"], sum(live))
            for block in segment["blocks"]:
                self.assertLessEqual({"address", "size", "requested_size", "state", "frames"}, set(block))
        del kept

    def test_cpp_has_the_snapshot_pickled(self) -> None:
        class Text(ctypes.Structure):
            """std::string, as a function of C++ returns it."""

            _fields_ = (("begin", ctypes.c_void_p), ("size", ctypes.c_size_t), ("rest", ctypes.c_uint8 * 16))

        function = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))[PICKLED]
        function.restype = Text
        self.record("all", context="all", stacks="python")
        kept = bytes_of(311_411)
        text = function()
        snapshot = pickle.loads(ctypes.string_at(text.begin, text.size))
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
        self.assertIn((kept.data_ptr(), 311_411), [(block["address"], block["requested_size"]) for block in blocks])
        events = [event for event in snapshot["device_traces"][0] if event["action"] != "snapshot"]
        self.assertEqual((events[-1]["action"], events[-1]["size"]), ("alloc", 311_411))


# ---- Pools


class Mapped:
    """An allocator of the runtime's blocks, for pools; it counts what it gave and what came back."""

    alloc_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    free_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)

    kept: ClassVar[list[Any]] = []  # as long as a pool could call them

    def __init__(self) -> None:
        self.kept.append(self)
        self.runtime = ctypes.CDLL("libcudart.so.13")
        self.given: list[int] = []
        self.came_back: list[int] = []
        # PyTorch keeps their addresses.
        self.functions = self.alloc_type(self.alloc), self.free_type(self.free)
        self.allocator = torch._C._cuda_customAllocator(
            *(ctypes.cast(function, ctypes.c_void_p).value for function in self.functions)
        )

    def alloc(self, size: int, _device: int, _stream: int | None) -> int | None:
        pointer = ctypes.c_void_p()
        if self.runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)):
            self.runtime.cudaGetLastError()
            return None
        self.given.append(pointer.value or 0)
        return pointer.value

    def free(self, pointer: int, _size: int, _device: int, _stream: int | None) -> None:
        self.came_back.append(pointer)
        self.runtime.cudaFree(ctypes.c_void_p(pointer))


class Pools(Case):
    def in_pool(self, pool: Any, count: int) -> Any:
        with torch.cuda.use_mem_pool(pool):
            return mebibytes(count)

    def test_ids_are_of_one_kind_and_each_is_new(self) -> None:
        ids = [torch.cuda.graph_pool_handle(), torch.cuda.MemPool().id, torch.cuda.graph_pool_handle()]
        self.assertEqual({identity[0] for identity in ids}, {0})
        numbers = [identity[1] for identity in ids]
        self.assertEqual(numbers, sorted(set(numbers)))

    def test_ids_of_threads_differ(self) -> None:
        pools: list[Any] = []
        threads = [threading.Thread(target=lambda: pools.append(torch.cuda.MemPool())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len({pool.id for pool in pools}), 8)

    def test_its_users_are_counted(self) -> None:
        source = Mapped()
        pool = torch.cuda.MemPool(source.allocator)
        self.assertEqual(pool.use_count(), 1)
        with torch.cuda.use_mem_pool(pool):
            kept = mebibytes(1)
            self.assertEqual(pool.use_count(), 2)
        self.assertEqual(pool.use_count(), 1)
        self.assertEqual(len(source.given), 1)
        del kept

    def test_its_allocator_gets_back_what_outlived_the_pool(self) -> None:
        source = Mapped()
        kept = self.in_pool(torch.cuda.MemPool(source.allocator), 16)
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual((len(source.given), source.came_back), (1, []))
        source.allocator = None
        del kept
        torch.cuda.empty_cache()
        self.assertEqual(source.came_back, source.given)

    def test_small_blocks_of_a_pool_lie_together(self) -> None:
        source = Mapped()
        pool = torch.cuda.MemPool(source.allocator)
        kept = [self.in_pool(pool, 1) for _ in range(2)]
        self.assertEqual((len(source.given), len(pool.snapshot())), (1, 1))
        del kept

    def test_a_nested_pool_serves_inside_and_the_outer_one_afterwards(self) -> None:
        pools = [torch.cuda.MemPool() for _ in range(3)]
        kept = []
        with torch.cuda.use_mem_pool(pools[0]):
            kept.append(mebibytes(20))
            with torch.cuda.use_mem_pool(pools[1]):
                kept.append(mebibytes(20))
                with torch.cuda.use_mem_pool(pools[2]):
                    kept.append(mebibytes(20))
                kept.append(mebibytes(20))
            kept.append(mebibytes(20))
        holders = [{block.data_ptr() for block in kept if block.data_ptr() in live_blocks(pool.id)} for pool in pools]
        addresses = [block.data_ptr() for block in kept]
        self.assertEqual(holders, [{addresses[0], addresses[4]}, {addresses[1], addresses[3]}, {addresses[2]}])
        for pool in pools:
            found = torch.cuda.memory_snapshot(pool.id)
            self.assertEqual({segment["segment_pool_id"] for segment in found}, {pool.id})
        del kept

    def test_emptying_the_cache_inside_leaves_the_pool_what_it_has(self) -> None:
        pools = [torch.cuda.MemPool() for _ in range(4)]

        def use(pool: Any) -> None:
            with torch.cuda.use_mem_pool(pool):
                bytes_of(16)
                torch.cuda.empty_cache()

        threads = [threading.Thread(target=use, args=(pool,)) for pool in pools]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([len(pool.snapshot()) for pool in pools], [1] * 4)

    def test_another_threads_blocks_are_not_of_it(self) -> None:
        pool, other = torch.cuda.MemPool(), []
        with torch.cuda.use_mem_pool(pool):
            mebibytes(1)
            thread = threading.Thread(target=lambda: other.append(mebibytes(1)))
            thread.start()
            thread.join()
        self.assertEqual(live_blocks(pool.id), {})
        self.assertIn(other[0].data_ptr(), live_blocks((0, 0)))

    def test_what_a_pool_lends_is_its_own_and_comes_back(self) -> None:
        source = Mapped()
        keeps = torch.cuda.MemPool(source.allocator)
        lends = torch.cuda.MemPool(source.allocator, use_on_oom=True)
        self.limit(80 * MIB)
        kept, lent = self.in_pool(keeps, 40), self.in_pool(lends, 40)
        address = lent.data_ptr()
        with self.assertRaises(torch.OutOfMemoryError):
            mebibytes(40)
        del kept, lent
        borrowed = mebibytes(30)
        self.assertEqual(borrowed.data_ptr(), address)
        with self.assertRaises(torch.OutOfMemoryError):
            mebibytes(30)
        del borrowed
        again = self.in_pool(lends, 20)
        self.assertEqual(again.data_ptr(), address)
        del again, lends, keeps

    def test_a_pool_that_is_gone_lends_nothing_and_holds_nothing(self) -> None:
        source = Mapped()
        self.limit(40 * MIB)
        for _ in range(10):
            pool = torch.cuda.MemPool(source.allocator, use_on_oom=True)
            self.in_pool(pool, 40)
            del pool
        pool = torch.cuda.MemPool(source.allocator, use_on_oom=True)
        self.in_pool(pool, 40)
        blocks = mebibytes(20), mebibytes(20)
        last = source.given[-1]
        self.assertTrue(all(last <= block.data_ptr() < last + 40 * MIB for block in blocks))
        del blocks, pool

    @native_alone
    def test_each_block_of_a_pool_that_splits_nothing_is_of_one_segment(self) -> None:
        source = Mapped()
        pool = torch.cuda.MemPool(source.allocator, no_split=True)
        kept = [self.in_pool(pool, 4) for _ in range(3)]
        self.assertEqual([block.data_ptr() for block in kept], source.given)
        self.assertEqual([len(segment["blocks"]) for segment in pool.snapshot()], [1] * 3)
        del kept

    def test_what_its_allocator_gave_is_not_expandable(self) -> None:
        self.addCleanup(change, "expandable_segments:False")
        change("expandable_segments:True")
        pool = torch.cuda.MemPool(Mapped().allocator)
        inside = self.in_pool(pool, 1)
        self.assertEqual([segment["is_expandable"] for segment in pool.snapshot()], [False])
        del inside

    @native_alone
    def test_other_segments_say_that_they_are_expandable(self) -> None:
        self.addCleanup(change, "expandable_segments:False")
        change("expandable_segments:True")
        kept = mebibytes(1)
        self.assertEqual({segment["is_expandable"] for segment in segments_of((0, 0))}, {True})
        del kept


# ---- Graphs


def graph_of(function: Callable[[], Any], pool: Any = None) -> tuple[Any, Any]:
    """The graph and what the function returned in it, after a first call outside of it."""
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, pool=pool):
        outputs = function()
    return graph, outputs


class Graphs(Case):
    def test_a_result_outlives_its_graph_and_nothing_else_does(self) -> None:
        for size in (512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB + 512):
            with self.subTest(size=size):
                source = torch.ones(size, dtype=torch.uint8, device="cuda")
                active, reserved = active_bytes(), torch.cuda.memory_reserved()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    result = source.clone()
                    for _ in range(5):
                        result = result.clone().clone()
                for _ in range(2):
                    graph.replay()
                    self.assertTrue(bool((result.cpu() == 1).all()))
                    torch.cuda.empty_cache()
                pool = graph.pool()
                del graph
                gc.collect()
                torch.cuda.empty_cache()
                self.assertTrue(bool((result.cpu() == 1).all()))
                self.assertEqual(list(live_blocks(pool)), [result.data_ptr()])
                self.assertEqual(active_bytes() - active, size)
                del result
                torch.cuda.empty_cache()
                self.assertEqual((active_bytes(), segments_of(pool)), (active, []))
                self.assertLessEqual(torch.cuda.memory_reserved(), reserved)

    def test_a_free_that_waits_disturbs_no_capture(self) -> None:
        waiting, source = torch.zeros(MIB, device="cuda"), torch.zeros(MIB, device="cuda")
        first, second, third = (torch.cuda.Stream() for _ in range(3))
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            waiting.record_stream(first)
            waiting.zero_()
        del waiting
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(second):
            graph.capture_begin()
            copy = source.clone()
            third.wait_stream(second)
            with torch.cuda.stream(third):
                copy.zero_()
                copy.record_stream(third)
                del copy
            second.wait_stream(third)
            graph.capture_end()
        torch.cuda.synchronize()
        graph.replay()
        torch.zeros(3, device="cuda")

    def test_every_stream_of_a_capture_takes_of_its_pool(self) -> None:
        source = mebibytes(4)
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(first):
            graph.capture_begin()
            one = source.clone()
        with torch.cuda.stream(second):
            second.wait_stream(first)
            two = source.clone()
        first.wait_stream(second)
        with torch.cuda.stream(first):
            graph.capture_end()
        self.assertLessEqual({one.data_ptr(), two.data_ptr()}, set(live_blocks(graph.pool())))

    def test_another_thread_may_ask_during_a_capture(self) -> None:
        for mode in ("thread_local", "relaxed"):
            found: list[int] = []

            def ask(found: list[int] = found) -> None:
                with torch.cuda.stream(torch.cuda.Stream()):
                    found.append(torch.cuda.caching_allocator_alloc(1024))

            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, capture_error_mode=mode):
                inside = mebibytes(1)
                thread = threading.Thread(target=ask)
                thread.start()
                thread.join()
            self.assertIn(inside.data_ptr(), live_blocks(graph.pool()))
            self.assertEqual(len(found), 1)
            self.assertNotIn(found[0], live_blocks(graph.pool()))
            torch.cuda.caching_allocator_delete(found[0])

    def test_what_one_graph_freed_serves_the_next_of_its_pool(self) -> None:
        for shares in (True, False):
            source = mebibytes(4)
            pool = torch.cuda.graph_pool_handle()
            graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
            with torch.cuda.graph(graphs[0], pool=pool):
                first, kept = source.clone(), source.clone()
            address = first.data_ptr()
            del first
            with torch.cuda.graph(graphs[1], pool=pool if shares else None):
                second = source.clone()
            self.assertEqual(second.data_ptr() == address, shares)
            self.assertNotEqual(second.data_ptr(), kept.data_ptr())
            del kept, second, graphs

    def test_callables_share_a_pool(self) -> None:
        pool = torch.cuda.graph_pool_handle()
        models = [torch.nn.Linear(32, 32).cuda() for _ in range(3)]
        source = torch.zeros(64, 32, device="cuda")
        graphed = [torch.cuda.make_graphed_callables(model, (source,), pool=pool) for model in models]
        for model in graphed:
            model(source).sum().backward()
            self.assertIsNotNone(model.weight.grad)
        self.assertEqual({segment["segment_pool_id"] for segment in segments_of(pool)}, {tuple(pool)})
        self.assertGreater(len(live_blocks(pool)), 3)

    def test_a_graph_is_captured_again_after_a_reset(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for value in (1, 2):
            source = torch.full((MIB,), value, dtype=torch.uint8, device="cuda")
            with torch.cuda.graph(graph):
                copy = source.clone()
            graph.replay()
            self.assertTrue(bool((copy.cpu() == value).all()))
            graph.reset()
            del copy

    def rejoined(self, size: int, others: int, count: int = 4) -> tuple[int, set[int], set[int]]:
        """Where a block was that other streams use, others before they have joined, and others afterwards."""
        change("graph_capture_record_stream_reuse:True")
        self.addCleanup(change, "graph_capture_record_stream_reuse:False")
        main = torch.cuda.Stream()
        side = [torch.cuda.Stream() for _ in range(others)]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(main):
            graph.capture_begin()
            mark, used = bytes_of(size), bytes_of(size)
            address = used.data_ptr()
            results = []
            for stream in side:
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    results.append(used.clone())
                    used.record_stream(stream)
            del used
            for stream in side[1:]:
                main.wait_stream(stream)
                mark.zero_()
            before = [bytes_of(size) for _ in range(4)]
            main.wait_stream(side[0])
            mark.zero_()
            after = [bytes_of(size) for _ in range(count)]
            graph.capture_end()
        torch.cuda.synchronize()
        return address, {block.data_ptr() for block in before}, {block.data_ptr() for block in after}

    def test_in_a_capture_a_block_waits_for_all_its_streams_to_join(self) -> None:
        # Blocks of a few bytes share 2 MiB, in which others serve first.
        for size, count in ((32, 6000), (MIB, 4), (8 * MIB, 4)):
            for others in (1, 3):
                address, before, after = self.rejoined(size, others, count)
                self.assertNotIn(address, before)
                self.assertIn(address, after)

    @native_alone
    def test_then_a_block_of_a_few_bytes_serves_again_at_once(self) -> None:
        address, _, after = self.rejoined(32, 1)
        self.assertIn(address, after)


class PoolStates(Case):
    """The state of a graph's pool is taken, and the pool is put back to it."""

    def restore(self, state: Any, stale: list[Any] | None = None, owners: list[Any] | None = None) -> None:
        storages = [[tensor.untyped_storage()._cdata for tensor in tensors or []] for tensors in (stale, owners)]
        torch._C._cuda_setCheckpointPoolState(0, state, *storages)

    def shape(self, pool: Any) -> dict[int, tuple[Any, ...]]:
        keys = ("total_size", "allocated_size", "active_size", "segment_type", "segment_pool_id")
        return {
            segment["address"]: (
                *(segment[key] for key in keys),
                [(block["size"], block["state"]) for block in segment["blocks"]],
            )
            for segment in segments_of(pool)
        }

    def test_putting_back_at_once_changes_nothing(self) -> None:
        def ones(size: int) -> Any:
            return torch.ones(size, dtype=torch.uint8, device="cuda")

        def large_and_small() -> Any:
            large = ones(8 * MIB) + ones(8 * MIB)
            small = ones(MIB) + (ones(MIB) + ones(MIB) + ones(MIB))
            return large, small, ones(MIB)

        def of_eleven(*which: int) -> Any:
            blocks = [ones(512) for _ in range(11)]
            return [blocks[index] for index in which]

        for function in (
            large_and_small,
            lambda: of_eleven(5),
            lambda: of_eleven(5, 8),
            lambda: of_eleven(5, 6),
            lambda: (),
        ):
            graph, outputs = graph_of(function)
            before = self.shape(graph.pool())
            self.restore(torch._C._cuda_getCheckpointState(0, graph.pool()))
            after = self.shape(graph.pool())
            self.assertEqual({address: after[address] for address in before}, before)
            del graph, outputs

    def test_what_another_graph_took_since_is_free(self) -> None:
        first, kept = graph_of(lambda: bytes_of(512))
        before = self.shape(first.pool())
        state = torch._C._cuda_getCheckpointState(0, first.pool())
        second, stale = graph_of(lambda: bytes_of(512), first.pool())
        self.assertEqual(len(live_blocks(first.pool())), 2)
        self.restore(state, stale=[stale])
        del stale
        after = self.shape(first.pool())
        self.assertEqual({address: after[address] for address in before}, before)
        self.assertEqual(list(live_blocks(first.pool())), [kept.data_ptr()])
        del second

    def test_what_died_since_lives_until_it_is_freed_by_its_address(self) -> None:
        graph, outputs = graph_of(lambda: [bytes_of(512), bytes_of(512)])
        addresses = [output.data_ptr() for output in outputs]
        state = torch._C._cuda_getCheckpointState(0, graph.pool())
        outputs.clear()
        self.restore(state)
        self.assertEqual(set(live_blocks(graph.pool())), set(addresses))
        while addresses:
            torch._C._cuda_cudaCachingAllocator_raw_delete(addresses.pop())
            self.assertEqual(set(live_blocks(graph.pool())), set(addresses))

    def test_tensors_that_are_named_own_what_came_back(self) -> None:
        source = torch.ones(MIB, dtype=torch.uint8, device="cuda")
        graph, outputs = graph_of(lambda: [source.repeat(2), source.repeat(2), source.repeat(20)])
        state = torch._C._cuda_getCheckpointState(0, graph.pool())
        made = [(output.data_ptr(), output.nbytes) for output in outputs]
        outputs.clear()
        self.assertEqual(live_blocks(graph.pool()), {})
        device = torch.device("cuda:0")
        again = []
        for address, size in made:
            storage = torch._C._construct_storage_from_data_pointer(address, device, size)
            again.append(torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage))
        graph.replay()
        torch.cuda.synchronize()
        self.restore(state, owners=again[:2])
        for left in (3, 2, 1):
            self.assertEqual(len(live_blocks(graph.pool())), left)
            again.pop(0)
        again.clear()
        # The third was not named, so its block is nobody's.
        self.assertEqual(list(live_blocks(graph.pool())), [made[2][0]])
        torch._C._cuda_cudaCachingAllocator_raw_delete(made[2][0])
        self.assertEqual(live_blocks(graph.pool()), {})

    def test_what_lives_is_compared_exactly(self) -> None:
        graph, kept = graph_of(lambda: bytes_of(16))

        def lives(*addresses: int) -> bool:
            return bool(torch._C._cuda_checkPoolLiveAllocations(0, graph.pool(), set(addresses)))

        address = kept.data_ptr()
        self.assertEqual([lives(address), lives(address, 0), lives()], [True, False, False])
        del kept
        self.assertTrue(lives())

    def test_a_thread_takes_of_a_graphs_pool_while_another_does_not(self) -> None:
        graph, outputs = graph_of(lambda: bytes_of(16))
        pool = graph.pool()
        del outputs
        found: dict[str, set[int]] = {"inside": set(), "after": set(), "beside": set()}
        begun, looked = threading.Event(), threading.Event()

        def inside() -> None:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
                begun.set()
                looked.wait()
                blocks = [mebibytes(20) for _ in range(3)]
                found["inside"] = set(live_blocks(pool)) & {block.data_ptr() for block in blocks}
                del blocks
                torch._C._cuda_endAllocateToPool(0, pool)
                torch._C._cuda_releasePool(0, pool)
            blocks = [mebibytes(20) for _ in range(3)]
            found["after"] = set(live_blocks(pool)) & {block.data_ptr() for block in blocks}

        def beside() -> None:
            begun.wait()
            blocks = [mebibytes(20) for _ in range(2)]
            found["beside"] = set(live_blocks(pool)) & {block.data_ptr() for block in blocks}
            looked.set()

        threads = [threading.Thread(target=inside), threading.Thread(target=beside)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([len(found[where]) for where in ("inside", "after", "beside")], [3, 0, 0])
        del graph
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(segments_of(pool), [])


class Table(unittest.TestCase):
    def test_each_test_has_its_row_and_says_where_it_differs(self) -> None:
        lines = Path(__file__).with_name("README.md").read_text().splitlines()
        rows = [cells for cells in (line.split(" | ") for line in lines) if len(cells) == 5]
        self.assertGreater(len(rows), 100)
        cases = [case for case in globals().values() if isinstance(case, type) and issubclass(case, Case)]
        tests = {f"{case.__name__}.{name}": getattr(case, name) for case in cases for name in vars(case)}
        tests = {name: test for name, test in tests.items() if ".test_" in name}
        shown = {
            name: cells for cells in rows for name in re.findall(r"`(\w+\.\w+)`", cells[1]) if ".py" not in cells[1]
        }
        self.assertEqual({name for name in shown if name.split(".")[0] in globals()}, set(tests))
        if not NATIVE:
            differing = {name for name, test in tests.items() if getattr(test, "__unittest_expecting_failure__", False)}
            self.assertEqual({name for name in tests if shown[name][3] == "no"}, differing)
        for cells in rows:
            self.assertTrue(cells[3] != "no" or len(cells[4]) > 20, cells)


if __name__ == "__main__":
    if not NATIVE:
        assert spillway.install("full", pinned_memory=True)
    sim.touch_operands()
    torch.cuda.init()
    unittest.main()
