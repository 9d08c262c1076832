"""Other packages' interfaces over regions, on the late simulated device."""

from __future__ import annotations

import unittest
from typing import Any

from on_seeds import Outcome, Program, check_counters, torch
from spilling import every_seed, refused
from spillway.compat.torch_memory_saver import torch_memory_saver as saver
from spillway.compat.vllm_sleep import SleepingAllocator

MIB = 1 << 20


def filled(value: int, mebibytes: int = 8) -> Any:
    return torch.full((mebibytes * MIB // 4,), value, dtype=torch.int32, device="cuda")


def wrong(tensor: Any, value: int) -> int:
    return int((tensor.cpu() != value).any())


def saver_pauses_and_resumes(outcome: Outcome) -> None:
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = filled(1)
        with saver.disable():
            outside = filled(2)
    with saver.region(tag="cache"):
        cache = filled(3, 16)
    places = weights.data_ptr(), cache.data_ptr()
    for _ in range(2):
        before = torch.cuda.memory_allocated()
        saver.pause("cache")
        saver.pause()
        assert torch.cuda.memory_allocated() == before - weights.nbytes - cache.nbytes
        other = filled(-1, 100)
        del other
        torch.cuda.empty_cache()
        saver.resume("weights")
        outcome.damaged += wrong(weights, 1) + wrong(outside, 2)
        saver.resume()
        assert (weights.data_ptr(), cache.data_ptr()) == places
        cache.fill_(4)
        outcome.damaged += wrong(cache, 4)
        check_counters()
    saver.pause("of nothing")
    refused("for the inside of a region", saver.disable().__enter__)


def saver_keeps_graphs(outcome: Outcome) -> None:
    source = filled(1)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    refused("leave pool out", saver.cuda_graph(graph, pool=(0, 1)).__enter__)
    with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
        result = source.clone()
    for value in (2, 3):
        source.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        saver.pause("graph")
        saver.resume("graph")
        outcome.damaged += wrong(result, value)


def server_sleeps_and_wakes(outcome: Outcome) -> None:
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool(tag="weights"):
        weights = filled(1)
    with allocator.use_memory_pool("kv_cache"):
        cache = filled(2, 16)
    usage = allocator.get_current_usage()
    assert usage >= weights.nbytes + cache.nbytes
    for tags in (("weights",), "weights"):
        allocator.sleep(tags)
        assert torch.cuda.memory_allocated() == 0
        assert allocator.get_current_usage() == usage
        allocator.wake_up(["weights"])
        assert torch.cuda.memory_allocated() == weights.nbytes
        outcome.damaged += wrong(weights, 1)
        allocator.wake_up()
        cache.fill_(2)
        outcome.damaged += wrong(cache, 2)
        check_counters()
    refused("give a list of tags, as in ['weights']", allocator.wake_up, "weights")
    allocator.sleep()  # drops both
    allocator.wake_up()


def no_room_to_wake_loses_nothing(outcome: Outcome) -> None:
    """As long as another model holds the memory; afterwards a second call goes on."""
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool("kv_cache"):
        cache = filled(2, 120)
    with allocator.use_memory_pool("weights"):
        weights = filled(1, 40)
    allocator.sleep(("weights", "kv_cache"))
    other = filled(9, 120)
    refused("out of memory", allocator.wake_up)
    # The weights were first.
    outcome.damaged += wrong(weights, 1) + wrong(other, 9)
    del other
    torch.cuda.empty_cache()
    allocator.wake_up()
    outcome.damaged += wrong(weights, 1) + wrong(cache, 2)


PROGRAMS: list[Program] = [
    saver_pauses_and_resumes,
    saver_keeps_graphs,
    server_sleeps_and_wakes,
    no_room_to_wake_loses_nothing,
]


OnEverySeed = every_seed(PROGRAMS)

if __name__ == "__main__":
    unittest.main()
