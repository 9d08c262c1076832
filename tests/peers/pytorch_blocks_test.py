"""What PyTorch's tests demand of blocks: their counters, errors, limits and settings."""

from __future__ import annotations

import importlib
import io
import random
import warnings
from typing import Any

from pytorch_demands import (
    MIB,
    Case,
    Table,  # noqa: F401
    active_bytes,
    bytes_of,
    change,
    main,
    mebibytes,
    native_alone,
    output,
    stat,
    torch,
)


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


if __name__ == "__main__":
    main()
