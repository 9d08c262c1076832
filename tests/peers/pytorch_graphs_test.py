"""What PyTorch's tests demand of graphs' memory, and of pools whose states are put back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

from pytorch_demands import (
    MIB,
    Case,
    Table,  # noqa: F401
    active_bytes,
    bytes_of,
    change,
    live_blocks,
    main,
    mebibytes,
    native_alone,
    segments_of,
    torch,
)


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


if __name__ == "__main__":
    main()
