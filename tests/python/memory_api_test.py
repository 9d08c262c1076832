"""What a program asks torch.cuda.memory, answered by the full integration. One process for all."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any

import spillway
import warm
from spillway._pytorch import hooks
from spillway._pytorch.releases import release_of

assert spillway.install("full")

# Imported tests are run here too.
from both import (  # noqa: E402
    MIB,
    Blocks,  # noqa: F401
    Counters,  # noqa: F401
    Graphs,  # noqa: F401
    Memory,
    OutOfMemory,  # noqa: F401
    Settings,  # noqa: F401
    Snapshots,  # noqa: F401
    mebibytes,
    torch,
)

ON_GPU = "SPILLWAY_TEST_GPU" in os.environ


def run_on(devices: str, code: str) -> subprocess.CompletedProcess[str]:
    """A process of its own on these simulated devices."""
    return warm.run(code, SPILLWAY_SIM=devices)


class Devices(Memory):
    def test_a_device_that_is_not_there(self) -> None:
        allowed = f"allowed are 0 to {torch.cuda.device_count() - 1}, "
        with self.assertRaisesRegex(RuntimeError, f"^Invalid device argument 99: {allowed}"):
            torch.cuda.memory_stats(99)

    @unittest.skipIf(ON_GPU, "two devices are simulated")
    def test_peers_reach_memory_that_is_not_the_caches(self) -> None:
        code = """
import ctypes, spillway, torch
spillway.install()
source = torch.arange(100_000)
there = source.to("cuda:0").to("cuda:1")
runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda[:2]}")
print(torch.equal(there.cpu(), source), runtime.cudaDeviceEnablePeerAccess(1, 0))
"""
        done = run_on("devices:2", code)
        already_enabled = 704
        self.assertEqual(done.stdout.split(), ["True", str(already_enabled)], done.stderr)

    @unittest.skipIf(ON_GPU, "devices that are no peers are simulated")
    def test_copies_between_devices_that_are_no_peers(self) -> None:
        code = """
import spillway, torch
from spillway import sim
spillway.install()
source = torch.arange(100_000)
there = source.to("cuda:0").to("cuda:1")
back = there.to("cuda:0")
print(torch.equal(there.cpu(), source), torch.equal(back.cpu(), source), sim.reports())
"""
        done = run_on("devices:2,mig:1", code)
        self.assertEqual(done.stdout.strip(), "True True []", done.stderr)


class Observers(Memory):
    def test_observers_are_called(self) -> None:
        seen: list[tuple[int, int, int, int]] = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
        total = torch.cuda.get_device_properties(0).total_memory
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        self.assertEqual(seen[0][:3], (0, 2 * total, total))


class History(Memory):
    def test_history_with_stacks(self) -> None:
        torch.cuda.memory._record_memory_history(max_entries=1000)
        self.addCleanup(torch.cuda.memory._record_memory_history, None)
        kept = mebibytes(7)
        gone = mebibytes(6)
        del gone
        snapshot = torch.cuda.memory._snapshot()
        events = [(entry["action"], entry["size"]) for entry in snapshot["device_traces"][0]]
        for event in (("alloc", 7 * MIB), ("alloc", 6 * MIB), ("free_requested", 6 * MIB), ("free_completed", 6 * MIB)):
            self.assertIn(event, events)
        stacks = [
            frame["name"]
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["address"] == kept.data_ptr()
            for frame in block["frames"]
        ]
        self.assertIn("test_history_with_stacks", stacks)

    def test_annotations_are_bounded_and_go_with_the_history(self) -> None:
        options: dict[str, Any] = {"max_entries": 10, "global_record_annotations": True}
        torch.cuda.memory._record_memory_history(**options)
        self.addCleanup(torch.cuda.memory._record_memory_history, None)
        for number in range(20):
            with torch.profiler.record_function(f"step {number}"):
                mebibytes(1)
        names = [entry["name"] for entry in torch.cuda.memory._snapshot()["external_annotations"]]
        self.assertEqual((len(names), names[-1]), (10, "step 19"))
        torch.cuda.memory._record_memory_history(**options, clear_history=True)
        self.assertEqual(torch.cuda.memory._snapshot()["external_annotations"], [])

    def test_a_free_that_waits_completes_later(self) -> None:
        torch.cuda.memory._record_memory_history()
        self.addCleanup(torch.cuda.memory._record_memory_history, None)
        side = torch.cuda.Stream()
        tensor = mebibytes(9)
        with torch.cuda.stream(side):
            tensor.zero_()
        tensor.record_stream(side)
        del tensor
        torch.cuda.synchronize()
        mebibytes(1)
        torch.cuda.empty_cache()
        actions = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["size"] == 9 * MIB]
        self.assertEqual(actions, ["alloc", "free_requested", "free_completed"])


class Pools(Memory):
    def test_a_pool_keeps_its_memory(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = mebibytes(4)
        outside = mebibytes(4)
        addresses = {block["address"] for segment in pool.snapshot() for block in segment["blocks"]}
        self.assertIn(inside.data_ptr(), addresses)
        self.assertNotIn(outside.data_ptr(), addresses)
        self.assertEqual(pool.use_count(), 1)
        address = inside.data_ptr()
        del inside
        others = [mebibytes(4) for _ in range(8)]
        self.assertNotIn(address, [other.data_ptr() for other in others])
        with torch.cuda.use_mem_pool(pool):
            again = mebibytes(4)
        self.assertEqual(again.data_ptr(), address)

    def test_a_pool_that_goes_leaves_what_others_have_cached(self) -> None:
        kept = mebibytes(64)
        del kept
        cached = torch.cuda.memory_reserved()
        for in_use in (True, False):
            pool = torch.cuda.MemPool()
            if in_use:
                with torch.cuda.use_mem_pool(pool):
                    mebibytes(32)
                self.assertEqual(torch.cuda.memory_reserved(), cached + 32 * MIB)
            del pool
            self.assertEqual(torch.cuda.memory_reserved(), cached)
        torch.cuda.empty_cache()
        self.assertLess(torch.cuda.memory_reserved(), cached)

    def test_a_graph_replays_in_its_own_memory(self) -> None:
        source = torch.zeros(MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = source * 2
            result = doubled + 1
        del doubled
        others = [mebibytes(4) for _ in range(8)]
        self.assertNotIn(result.data_ptr(), [other.data_ptr() for other in others])
        graph.replay()
        torch.cuda.synchronize()
        graph.reset()

    def test_two_graphs_share_a_pool(self) -> None:
        source = torch.zeros(MIB, device="cuda")
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(first):
            kept = source * 2
        with torch.cuda.graph(second, pool=first.pool()):
            other = kept * 2
        first.replay()
        second.replay()
        torch.cuda.synchronize()
        self.assertNotEqual(kept.data_ptr(), other.data_ptr())

    def test_deleted_graphs_leave_while_another_thread_has_a_pool_open(self) -> None:
        opened, done = threading.Event(), threading.Event()
        self.addCleanup(done.set)

        def hold() -> None:
            with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
                mebibytes(1)
                opened.set()
                done.wait()

        def die() -> None:
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, abandoned)
            mebibytes(1)
            opened.set()

        abandoned = torch.cuda.graph_pool_handle()
        self.addCleanup(torch._C._cuda_endAllocateToPool, 0, abandoned)
        for holder in (threading.Thread(target=hold), threading.Thread(target=die)):
            opened.clear()
            holder.start()
            opened.wait()
            before = torch.cuda.memory_reserved()
            for _ in range(2):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    mebibytes(100)
                graph.replay()
                del graph
                gc.collect()
                torch.cuda.empty_cache()
                self.assertEqual(torch.cuda.memory_reserved(), before)
            done.set()
            holder.join()

    def test_a_pool_lends_instead_of_running_out(self) -> None:
        self.lend(())

    def test_a_pool_with_its_own_allocator_lends_too(self) -> None:
        # The library is the runtime's, which the process has loaded.
        runtime = next(
            line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcudart" in line
        )
        source = """
extern "C" int cudaMalloc(void**, unsigned long);
extern "C" int cudaFree(void*);
extern "C" void* take(unsigned long bytes, int, void*) { void* p = 0; return cudaMalloc(&p, bytes) ? 0 : p; }
extern "C" void give(void* p, unsigned long, int, void*) { cudaFree(p); }
"""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "own.cpp").write_text(source)
            library = f"{folder}/own.so"
            subprocess.run(["g++", "-shared", "-fPIC", f"{folder}/own.cpp", runtime, "-o", library], check=True)
            own = torch.cuda.memory.CUDAPluggableAllocator(library, "take", "give")
            self.lend((own.allocator(),))

    def lend(self, own: tuple[Any, ...]) -> None:
        most = self.limit() // MIB
        for lends in (True, False):
            pool = torch.cuda.MemPool(*own, use_on_oom=lends)
            with torch.cuda.use_mem_pool(pool):
                inside = mebibytes(most // 2)
            del inside
            # Its own allocator's memory stays in its segment, and cannot be joined with other.
            request = [most * 3 // 4] if not own else [most // 2]
            held = mebibytes(most // 4) if own else None
            if lends:
                self.assertEqual(mebibytes(*request).numel(), request[0] * MIB)
            else:
                self.assertRaises(torch.OutOfMemoryError, mebibytes, *request)
            del pool, held


class Uncached(Memory):
    def setUp(self) -> None:
        super().setUp()
        torch.cuda.memory.caching_allocator_enable(False)
        self.addCleanup(torch.cuda.memory.caching_allocator_enable, True)

    def expect_free(self, expected: int) -> None:
        """A GPU's driver takes a little for itself beside what it gives, and keeps that."""
        self.assertAlmostEqual(torch.cuda.mem_get_info()[0], expected, delta=4 * MIB if ON_GPU else 0)

    def test_each_tensor_is_the_drivers(self) -> None:
        free, _ = torch.cuda.mem_get_info()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        source = torch.arange(4 * MIB)
        tensor = source.cuda()
        self.assertTrue(torch.equal(tensor.cpu(), source))
        self.assertEqual((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()), (allocated, reserved))
        self.expect_free(free - 32 * MIB)
        tensor.record_stream(torch.cuda.Stream())
        del tensor
        self.expect_free(free)

    def test_tensors_outlive_the_setting(self) -> None:
        uncached = mebibytes(2)
        torch.cuda.memory.caching_allocator_enable(True)
        before = torch.cuda.memory_allocated()
        cached = mebibytes(2)
        self.assertEqual(torch.cuda.memory_allocated(), before + 2 * MIB)
        del uncached
        torch.cuda.memory.caching_allocator_enable(False)
        del cached
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_blocks_of_extensions_are_the_drivers_too(self) -> None:
        take, give = (getattr(torch._C, f"_cuda_cudaCachingAllocator_raw_{name}") for name in ("alloc", "delete"))
        stream = torch.cuda.current_stream().cuda_stream
        free, allocated = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
        block = take(32 * MIB, stream)
        self.expect_free(free - 32 * MIB)
        self.assertEqual(torch.cuda.memory_allocated(), allocated)
        torch.cuda.memory.caching_allocator_enable(True)
        cached = take(2 * MIB, stream)
        self.assertEqual(torch.cuda.memory_allocated(), allocated + 2 * MIB)
        give(block)
        torch.cuda.memory.caching_allocator_enable(False)
        give(cached)
        torch.cuda.empty_cache()
        self.expect_free(free)
        self.assertEqual(torch.cuda.memory_allocated(), allocated)

    def test_the_cache_makes_room(self) -> None:
        free, total = (size // MIB for size in torch.cuda.mem_get_info())
        room = min(free, 2048)  # of a large device, most is taken in one piece: that is quick
        others = mebibytes(free - room)
        torch.cuda.memory.caching_allocator_enable(True)
        mebibytes(room * 3 // 4)
        torch.cuda.memory.caching_allocator_enable(False)
        self.assertGreater(torch.cuda.memory_reserved(), room * MIB // 2)
        mebibytes(room * 3 // 4)
        self.assertLess(torch.cuda.memory_reserved(), room * MIB // 2)
        with self.assertRaisesRegex(torch.OutOfMemoryError, "CUDA out of memory"):
            mebibytes(2 * total)
        del others


@unittest.skipIf(release_of(torch) < (2, 15), "what PyTorch has since 2.15")
class Addresses(Memory):
    def test_a_place_of_the_programs_choice_is_refused(self) -> None:
        storage = mebibytes(2).untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        storage.resize_(0)
        with self.assertRaisesRegex(RuntimeError, r"chooses where a block lies.* spillway\.region\(\)"):
            storage._resize_with_addr_(size, address)
        self.assertEqual(storage.nbytes(), 0)


class PoolStates(Memory):
    """What the graph trees of torch.compile ask; graph_trees_test.py has them ask it."""

    def setUp(self) -> None:
        super().setUp()
        self.pool = torch.cuda.MemPool()

    def in_pool(self, count: int) -> Any:
        with torch.cuda.use_mem_pool(self.pool):
            return mebibytes(count)

    def save(self) -> Any:
        return torch._C._cuda_getCheckpointState(0, self.pool.id)

    def is_live(self, *addresses: int) -> bool:
        return bool(torch._C._cuda_checkPoolLiveAllocations(0, self.pool.id, set(addresses)))

    def test_what_is_freed_is_taken_from_its_tensors(self) -> None:
        before = torch.cuda.memory_allocated()
        kept = self.in_pool(4)
        state = self.save()
        stale = self.in_pool(6)
        storage = stale.untyped_storage()._cdata
        self.assertTrue(torch._C._has_Standard_Deleter(storage))
        torch._C._cuda_setCheckpointPoolState(0, state, [storage], [])
        self.assertFalse(torch._C._has_Standard_Deleter(storage))
        self.assertEqual(torch.cuda.memory_allocated() - before, 4 * MIB)
        self.assertTrue(self.is_live(kept.data_ptr()))
        del stale
        self.assertEqual(torch.cuda.memory_allocated() - before, 4 * MIB)
        del kept
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_what_comes_back_belongs_to_the_storages_given(self) -> None:
        before = torch.cuda.memory_allocated()
        gone = self.in_pool(4)
        with torch.cuda.use_mem_pool(self.pool):
            nobodys = torch.empty(100, device="cuda")
        addresses = gone.data_ptr(), nobodys.data_ptr()
        state = self.save()
        del gone, nobodys
        self.assertTrue(self.is_live())
        storage = torch._C._construct_storage_from_data_pointer(addresses[0], torch.device("cuda:0"), 4 * MIB)
        torch.cuda.memory._record_memory_history(max_entries=1000)
        self.addCleanup(torch.cuda.memory._record_memory_history, None)
        torch._C._cuda_setCheckpointPoolState(0, state, [], [storage._cdata])
        events = [(event["action"], event["addr"]) for event in torch.cuda.memory._snapshot()["device_traces"][0]]
        self.assertLessEqual({("alloc", address) for address in addresses}, set(events))
        self.assertTrue(torch._C._has_Standard_Deleter(storage._cdata))
        self.assertTrue(self.is_live(*addresses))
        del storage
        self.assertTrue(self.is_live(addresses[1]))
        torch._C._cuda_cudaCachingAllocator_raw_delete(addresses[1])
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_a_tensor_that_loses_its_memory_must_be_named(self) -> None:
        state = self.save()
        stale = self.in_pool(2)
        with self.assertRaisesRegex(RuntimeError, "must be passed"):
            torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        # Its memory is gone all the same, as with PyTorch's own allocator: both tensors have it now.
        self.assertTrue(self.is_live())
        again = self.in_pool(2)
        self.assertEqual(again.data_ptr(), stale.data_ptr())
        both = [tensor.untyped_storage()._cdata for tensor in (stale, again)]
        torch._C._cuda_setCheckpointPoolState(0, state, both, [])
        self.assertTrue(self.is_live())

    def test_a_state_of_something_else(self) -> None:
        state = self.save()
        with self.assertRaisesRegex(RuntimeError, "of a pool of device 0, not 1"):
            torch._C._cuda_setCheckpointPoolState(1, state, [], [])
        malloc, free = [hooks.address(getattr(ctypes.CDLL(None), name)) for name in ("malloc", "free")]
        other = torch.cuda.MemPool(torch._C._cuda_customAllocator(malloc, free))
        with self.assertRaisesRegex(RuntimeError, "an allocator of its own"):
            torch._C._cuda_getCheckpointState(0, other.id)
        with self.assertRaisesRegex(RuntimeError, "does not exist"):
            torch._C._cuda_getCheckpointState(0, (1 << 40, 0))
        del self.pool
        with self.assertRaisesRegex(RuntimeError, "was released"):
            torch._C._cuda_setCheckpointPoolState(0, state, [], [])


class Profile(Memory):
    def test_profiler_sees_memory(self) -> None:
        with torch.profiler.profile(profile_memory=True) as profile:
            mebibytes(11)
        sizes = [event.device_memory_usage for event in profile.key_averages()]
        self.assertIn(11 * MIB, [abs(size) for size in sizes])

    def test_mem_get_info(self) -> None:
        free, total = torch.cuda.mem_get_info()
        self.assertTrue(0 < free <= total)


if __name__ == "__main__":
    unittest.main()
