"""torch.cuda.MemPool with an allocator of its own, under Spillway, on the late simulated device.

The allocator maps memory as NCCL's does, and unmaps it at once when it gets it back, so the race detector reports a
segment that goes back while something may use it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import unittest
from typing import Any

os.environ.setdefault("SPILLWAY_SIM", "capacity:1GiB,completion:late")

import spillway  # noqa: E402
from spillway import sim  # noqa: E402
from spillway._library import check, library  # noqa: E402
from spillway._pytorch import hooks  # noqa: E402

torch: Any = importlib.import_module("torch")

MIB = 1 << 20
PAGE = 2 * MIB


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class Access(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class Mapper:
    """An allocator that maps what it is asked for, and unmaps what it gets back."""

    alloc_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    free_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)

    def __init__(self, most_bytes: int = 1 << 40) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.most_bytes = most_bytes
        self.held: dict[int, int] = {}
        self.asked: list[int] = []
        # PyTorch keeps their addresses.
        self.functions = self.alloc_type(self.alloc), self.free_type(self.free)
        self.allocator = torch._C._cuda_customAllocator(*map(hooks.address, self.functions))

    def call(self, name: str, *arguments: object) -> None:
        answer = getattr(self.driver, name)(*arguments)
        assert answer == 0, f"{name}: {answer}"

    def alloc(self, size: int, device: int, _stream: int | None) -> int | None:
        self.asked.append(size)
        if size > self.most_bytes:
            return None
        rounded = ctypes.c_size_t((size + PAGE - 1) // PAGE * PAGE)
        place, zero = Location(1, device), ctypes.c_uint64(0)
        handle, address = ctypes.c_uint64(), ctypes.c_uint64()
        self.call("cuMemAddressReserve", ctypes.byref(address), rounded, ctypes.c_size_t(0), zero, zero)
        self.call("cuMemCreate", ctypes.byref(handle), rounded, ctypes.byref(Properties(1, 0, place)), zero)
        self.call("cuMemMap", address, rounded, ctypes.c_size_t(0), handle, zero)
        self.call("cuMemSetAccess", address, rounded, ctypes.byref(Access(place, 3)), ctypes.c_size_t(1))
        self.call("cuMemRelease", handle)
        self.held[address.value] = rounded.value
        return address.value

    def free(self, pointer: int, _size: int, _device: int, _stream: int | None) -> None:
        size = ctypes.c_size_t(self.held.pop(pointer))
        self.call("cuMemUnmap", ctypes.c_uint64(pointer), size)
        self.call("cuMemAddressFree", ctypes.c_uint64(pointer), size)

    def holds(self, tensor: Any) -> bool:
        return any(0 <= tensor.data_ptr() - address < size for address, size in self.held.items())


def numbers(count: int) -> Any:
    return torch.arange(count, dtype=torch.int32)


class PoolSources(unittest.TestCase):
    def setUp(self) -> None:
        self.mapper = Mapper()
        self.pool = torch.cuda.MemPool(self.mapper.allocator)
        torch.cuda.empty_cache()
        self.before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def drop_pool(self) -> None:
        del self.pool
        gc.collect()

    def tearDown(self) -> None:
        if hasattr(self, "pool"):
            self.drop_pool()
        torch.cuda.empty_cache()
        self.assertEqual((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()), self.before)
        self.assertEqual(self.mapper.held, {})
        check(library().spw_validate(0))
        found = sim.reports()
        sim.clear_reports()
        self.assertEqual(found, [])

    def test_tensors_are_parts_of_few_segments(self) -> None:
        with torch.cuda.use_mem_pool(self.pool):
            tensors = [numbers(50_000 + count).cuda() for count in range(40)]
        outside = numbers(50_000).cuda()
        self.assertTrue(all(self.mapper.holds(tensor) for tensor in tensors))
        self.assertFalse(self.mapper.holds(outside))
        self.assertLessEqual(len(self.mapper.asked), 5)
        for count, tensor in enumerate(tensors):
            self.assertTrue(torch.equal(tensor.cpu(), numbers(50_000 + count)))
        segments = self.pool.snapshot()
        self.assertEqual(sum(segment["total_size"] for segment in segments), sum(self.mapper.held.values()))
        self.assertEqual(torch.cuda.memory_reserved() - self.before[1], sum(self.mapper.held.values()) + PAGE)

    def test_the_pool_keeps_and_reuses_what_it_has(self) -> None:
        with torch.cuda.use_mem_pool(self.pool):
            first = numbers(3 * MIB).cuda()
            address, asked = first.data_ptr(), len(self.mapper.asked)
            del first
            torch.cuda.empty_cache()
            second = numbers(3 * MIB).cuda()
            self.assertEqual((second.data_ptr(), len(self.mapper.asked)), (address, asked))

    def test_memory_goes_back_behind_its_streams(self) -> None:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        with torch.cuda.use_mem_pool(self.pool):
            tensor = torch.full((MIB,), 3, dtype=torch.int64, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            copy = tensor.clone()
        tensor.record_stream(side)
        del tensor
        with torch.cuda.use_mem_pool(self.pool):
            torch.full((MIB,), 4, dtype=torch.int64, device="cuda").add_(1)
        self.drop_pool()
        torch.cuda.empty_cache()
        self.assertEqual(self.mapper.held, {})
        main.wait_stream(side)
        self.assertTrue(bool((copy.cpu() == 3).all()))

    def test_a_tensor_outlives_its_pool(self) -> None:
        with torch.cuda.use_mem_pool(self.pool):
            tensor = numbers(3 * MIB).cuda()
        self.drop_pool()
        torch.cuda.empty_cache()
        self.assertTrue(self.mapper.holds(tensor))
        self.assertTrue(torch.equal(tensor.cpu(), numbers(3 * MIB)))
        del tensor

    def test_a_graph_in_it(self) -> None:
        source = torch.full((MIB,), 1.0, device="cuda")
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self.pool.id):
            kept = source.clone()
            kept.add_(1)
        torch.cuda.synchronize()
        self.assertTrue(self.mapper.holds(kept))
        torch.cuda.empty_cache()
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        del kept, graph

    def test_an_allocator_that_has_no_more(self) -> None:
        mapper = Mapper(most_bytes=30 * MIB)
        pool = torch.cuda.MemPool(mapper.allocator)
        with torch.cuda.use_mem_pool(pool):
            inside = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
            with self.assertRaisesRegex(torch.OutOfMemoryError, "^CUDA out of memory"):
                torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual(mapper.asked[-1], 40 * MIB)
        del inside, pool
        gc.collect()
        self.assertEqual(mapper.held, {})

    def test_what_spillway_caches_makes_room(self) -> None:
        cached = torch.empty(700 * MIB, dtype=torch.uint8, device="cuda")
        del cached
        with torch.cuda.use_mem_pool(self.pool):
            inside = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
        self.assertTrue(self.mapper.holds(inside))

    def test_spillway_is_no_source_of_itself(self) -> None:
        self.assertIsNone(spillway.mempool_allocator())
        pool = torch.cuda.MemPool(hooks.pluggable(torch, hooks.SEGMENTS))
        with (
            torch.cuda.use_mem_pool(pool),
            self.assertRaisesRegex(RuntimeError, "gives memory that Spillway manages already"),
        ):
            numbers(1000).cuda()
        del pool


class FromTheRuntime(unittest.TestCase):
    def test_memory_of_the_runtime_has_handles_for_other_processes(self) -> None:
        runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda[:2]}")

        def alloc(size: int, _device: int, _stream: int | None) -> int | None:
            pointer = ctypes.c_void_p()
            runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
            return pointer.value

        def free(pointer: int, _size: int, _device: int, _stream: int | None) -> None:
            runtime.cudaFree(ctypes.c_void_p(pointer))

        functions = Mapper.alloc_type(alloc), Mapper.free_type(free)
        pool = torch.cuda.MemPool(torch._C._cuda_customAllocator(*map(hooks.address, functions)))
        outside = numbers(MIB).cuda()
        with torch.cuda.use_mem_pool(pool):
            inside = [numbers(MIB).cuda() for _ in range(2)]
        handle = ctypes.create_string_buffer(64)  # CUDA_IPC_HANDLE_SIZE
        taken = [runtime.cudaIpcGetMemHandle(handle, ctypes.c_void_p(each.data_ptr())) for each in (outside, *inside)]
        runtime.cudaGetLastError()
        self.assertEqual([status == 0 for status in taken], [False, True, True])
        del inside, pool
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    spillway.install()
    sim.touch_operands()
    torch.cuda.init()
    unittest.main()
