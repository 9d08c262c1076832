"""What PyTorch's tests demand of memory pools."""

from __future__ import annotations

import ctypes
import gc
import threading
from typing import Any, ClassVar

from pytorch_demands import (
    MIB,
    Case,
    Table,  # noqa: F401
    bytes_of,
    change,
    live_blocks,
    main,
    mebibytes,
    native_alone,
    segments_of,
    torch,
)


class Mapped:
    """An allocator of the runtime's blocks, for pools; it counts what it gave and what came back."""

    alloc_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    free_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)

    kept: ClassVar[list[Any]] = []  # as long as a pool could call them

    def __init__(self) -> None:
        self.kept.append(self)
        self.runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda[:2]}")
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


if __name__ == "__main__":
    main()
