"""Other packages' interfaces over regions, on the late simulated device."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import spillway
import spillway.compat.torch_memory_saver as module
from on_seeds import Outcome, Program, check_counters, free_bytes, torch
from spilling import configure, every_seed, refused
from spillway.compat.torch_memory_saver import torch_memory_saver as saver
from spillway.compat.vllm_sleep import SleepingAllocator

MIB = 1 << 20


def filled(value: int, mebibytes: int = 8) -> Any:
    return torch.full((mebibytes * MIB // 4,), value, dtype=torch.int32, device="cuda")


def wrong(tensor: Any, value: int) -> int:
    return int((tensor.cpu() != value).any())


def saver_pauses_and_resumes(outcome: Outcome) -> None:
    """torch_memory_saver#71: weights that were kept on the host came back as something else."""
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
    with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
        result = source.clone()
    for value in (2, 3):
        source.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        saver.pause("graph")
        saver.resume("graph")
        outcome.damaged += wrong(result, value)


def saver_keeps_graphs_of_one_pool(outcome: Outcome) -> None:
    """As servers capture them: all into one pool that is their own, and then into that of the first graph."""
    source = filled(1)
    handle, other = torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle()
    torch.cuda.synchronize()
    captured: list[Any] = []
    for pool in (handle, handle, None, other):
        graph = torch.cuda.CUDAGraph()
        pool = captured[0][0].pool() if pool is None else pool
        with saver.cuda_graph(cuda_graph=graph, pool=pool, stream=None, tag="graphs", enable_cpu_backup=True):
            result = source.clone()
        captured.append((graph, result))
    assert len({graph.pool() for graph, _ in captured[:3]}) == 1
    assert captured[3][0].pool() != captured[0][0].pool()
    before = torch.cuda.memory_allocated()
    for value in (2, 3):
        source.fill_(value)
        for graph, _ in captured:
            graph.replay()
        torch.cuda.synchronize()
        saver.pause("graphs")
        assert torch.cuda.memory_allocated() == before - 4 * source.nbytes
        saver.resume("graphs")
        outcome.damaged += sum(wrong(result, value) for _, result in captured)


def saver_shows_what_is_kept(outcome: Outcome) -> None:
    with saver.region("weights", enable_cpu_backup=True, cpu_backup_backend="pinned"):
        first, second = filled(1), filled(2)
    with saver.region("cache"):
        cache = filled(3)
    outside = filled(4)
    for _ in range(2):
        assert saver.get_cpu_backup(first) is None
        before = torch.cuda.memory_allocated()
        saver.pause()
        assert saver.get_cpu_backup(cache) is None and saver.get_cpu_backup(outside) is None
        paused = torch.cuda.memory_allocated()
        assert paused < before
        for zero_copy in (False, True):
            backup = saver.get_cpu_backup(second[5:], zero_copy=zero_copy)
            assert backup.device.type == "cpu" and backup.shape == second[5:].shape
            outcome.damaged += wrong(backup, 2) + wrong(saver.get_cpu_backup(first), 1)
        assert torch.cuda.memory_allocated() == paused
        torch.cuda.empty_cache()
        # It needs no room on the device.
        other = torch.empty(free_bytes() - (8 << 20), dtype=torch.uint8, device="cuda")
        outcome.damaged += wrong(saver.get_cpu_backup(first), 1)
        del other
        torch.cuda.empty_cache()
        saver.resume()
        outcome.damaged += wrong(first, 1) + wrong(second, 2)


def saver_keeps_on_the_disk(outcome: Outcome) -> None:
    configure("spill_ram_backed:on")
    with tempfile.TemporaryDirectory() as folder:
        saver.set_disk_backup_dir(f"{folder}/made")
        with saver.region("weights", enable_disk_backup=True):
            weights = filled(1)
        saver.pause()
        assert spillway.tier_stats()["region_disk_bytes"] >= weights.nbytes
        outcome.damaged += wrong(saver.get_cpu_backup(weights), 1)
        saver.resume()
        outcome.damaged += wrong(weights, 1)


def saver_refuses_what_it_cannot_do(outcome: Outcome) -> None:
    refused("exclude each other", saver.region(enable_cpu_backup=True, enable_disk_backup=True).__enter__)
    refused("allowed: pinned, mmap", saver.region(enable_cpu_backup=True, cpu_backup_backend="paper").__enter__)
    refused("requires enable_cpu_backup", saver.region(cpu_backup_backend="mmap").__enter__)
    assert saver.retain_cpu_backup is False
    saver.hook_mode = "torch"
    # The margin is left free.
    saver.memory_margin_bytes = 100 * MIB
    wrong(filled(1), 1)
    try:
        filled(1, torch.cuda.mem_get_info()[1] // MIB - 92)
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("nothing was left")


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
    saver_keeps_graphs_of_one_pool,
    saver_shows_what_is_kept,
    saver_keeps_on_the_disk,
    saver_refuses_what_it_cannot_do,
    server_sleeps_and_wakes,
    no_room_to_wake_loses_nothing,
]


OnEverySeed = every_seed(PROGRAMS)


class TorchMemorySaver(unittest.TestCase):
    def test_it_has_every_public_name(self) -> None:
        """As of torch_memory_saver 0.0.10b1."""
        self.assertTrue(callable(module.configure_subprocess) and callable(module.TorchMemorySaver))
        names = (
            "region cuda_graph disable pause resume enabled hook_mode memory_margin_bytes retain_cpu_backup "
            "get_cpu_backup set_disk_backup_dir"
        )
        self.assertEqual([name for name in names.split() if name not in dir(saver)], [])

    def test_processes_that_are_started_inside_have_it(self) -> None:
        before = dict(os.environ)
        with module.configure_subprocess():
            text = "import torch, spillway; print(spillway.installed().mode)"
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "full\n")
        self.assertEqual(dict(os.environ), before)


if __name__ == "__main__":
    unittest.main()
