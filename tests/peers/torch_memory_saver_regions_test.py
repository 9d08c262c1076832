"""What the examples of torch_memory_saver demand of regions and their backups, each by its idea, on the late device."""

from __future__ import annotations

import tempfile
import unittest

import spillway
from on_seeds import Outcome, Program, check_counters, torch
from spilling import configure, every_seed, pinned_bytes
from torch_memory_saver_demands import EVERYTHING, MIB, filled, resident_bytes, saver_in, used, wrong

# ---- Regions


def memory_leaves_and_comes_back_to_its_address(outcome: Outcome) -> None:
    saver = saver_in()
    outside = filled(1)
    with saver.region():
        tensor = filled(2, 64)
    place, before = tensor.data_ptr(), used()
    saver.pause()
    assert before - used() == 64 * MIB
    saver.resume()
    assert used() == before and tensor.data_ptr() == place
    outcome.damaged += wrong(outside, 1)
    del tensor
    torch.cuda.empty_cache()
    assert used() == before - 64 * MIB


def a_graph_is_valid_when_its_memory_is_back(outcome: Outcome) -> None:
    """With what it keeps between its steps, which is given back as well."""
    saver = saver_in()
    with saver.region(tag="kv_cache"):
        cache = filled(1, 16)
    result = torch.zeros_like(cache)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with saver.cuda_graph(graph, tag="graph"):
        between = [cache.clone() for _ in range(3)]
        result.copy_(between[-1])
    graph.replay()
    outcome.damaged += wrong(result, 1)
    before = used()
    saver.pause("kv_cache")
    assert used() == before - 16 * MIB
    saver.pause("graph")
    assert used() == before - 64 * MIB
    other = filled(9, 60)
    outcome.damaged += wrong(other, 9)
    del other
    torch.cuda.empty_cache()
    saver.resume("graph")
    saver.resume("kv_cache")
    cache.fill_(2)
    graph.replay()
    outcome.damaged += wrong(result, 2)
    check_counters()


def tags_are_paused_one_by_one(outcome: Outcome) -> None:
    saver = saver_in()
    held = {}
    for value, tag in enumerate(("model_weights", "kv_cache")):
        with saver.region(tag=tag):
            held[tag] = filled(value)
    places = {tag: tensor.data_ptr() for tag, tensor in held.items()}
    graph, result = torch.cuda.CUDAGraph(), torch.zeros_like(held["kv_cache"])
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result.copy_(held["kv_cache"])
    for order in (("kv_cache", "model_weights"), ("model_weights", "kv_cache")):
        before = used()
        for number, tag in enumerate(order):
            saver.pause(tag)
            assert used() == before - (number + 1) * 8 * MIB
        for tag in reversed(order):
            saver.resume(tag)
    assert places == {tag: tensor.data_ptr() for tag, tensor in held.items()}
    held["model_weights"].fill_(3)
    saver.pause("kv_cache")
    outcome.damaged += wrong(held["model_weights"], 3)
    saver.resume("kv_cache")
    held["kv_cache"].fill_(4)
    graph.replay()
    outcome.damaged += wrong(result, 4)


def what_is_freed_while_it_is_paused_costs_the_others_nothing(outcome: Outcome) -> None:
    """Of sizes that fill no page."""
    saver = saver_in(**EVERYTHING)
    first, second = (torch.full((1728,), value, dtype=torch.int32, device="cuda") for value in (1, 2))
    saver.pause()
    del first
    torch.cuda.empty_cache()
    saver.resume()
    outcome.damaged += wrong(second, 2)
    second.fill_(3)
    outcome.damaged += wrong(second, 3)
    check_counters()


# ---- Backups


def bytes_with_a_backup_come_back(outcome: Outcome) -> None:
    saver = saver_in()
    for backend in ("mmap", "pinned", None):
        with saver.region(enable_cpu_backup=True, cpu_backup_backend=backend):
            kept, small = filled(1, 20), torch.arange(6000, device="cuda").view(10, 20, 30)
            expected = torch.arange(6000).view(10, 20, 30)
            small.copy_(expected)
        with saver.region():
            dropped = filled(2, 20)
        outside = filled(3, 20)
        saver.pause()
        assert torch.equal(saver.get_cpu_backup(small), expected)
        assert torch.equal(saver.get_cpu_backup(small[2:4, 1:, ::2]), expected[2:4, 1:, ::2])
        saver.resume()
        # Nobody has to wait for it, on whatever stream.
        with torch.cuda.stream(torch.cuda.Stream()):
            copy = kept.clone()
            outcome.damaged += wrong(copy, 1)
        outcome.damaged += wrong(outside, 3) + int(not torch.equal(small.cpu(), expected))
        assert saver.get_cpu_backup(small) is None
        dropped.fill_(4)
        outcome.damaged += wrong(dropped, 4)
        del kept, small, dropped, outside, copy
        torch.cuda.empty_cache()


def a_retained_backup_keeps_its_address(outcome: Outcome) -> None:
    """It has the bytes of the last pause, and ends with a resume that does not retain it."""
    saver = saver_in()
    for backend in ("pinned", "mmap"):
        with saver.region(tag=backend, enable_cpu_backup=True, cpu_backup_backend=backend):
            tensor, unseen = filled(1, 1), filled(11, 9)
        with saver.region(tag="other", enable_cpu_backup=True):
            other = filled(10, 1)
        saver.pause(tag=backend)
        shown = saver.get_cpu_backup(tensor, zero_copy=True)
        place = shown.data_ptr()
        outcome.damaged += wrong(shown, 1) + wrong(other, 10)
        saver.retain_cpu_backup = True
        saver.resume(tag=backend)
        for value in (2, 3):
            tensor.fill_(value)
            retained = saver.get_cpu_backup(tensor, zero_copy=True)
            assert retained.data_ptr() == place
            outcome.damaged += wrong(retained, value - 1) + wrong(saver.get_cpu_backup(unseen), 11)
            saver.pause(tag=backend)
            again = saver.get_cpu_backup(tensor, zero_copy=True)
            assert again.data_ptr() == place and saver.get_cpu_backup(tensor).data_ptr() != place
            outcome.damaged += wrong(again, value)
            saver.resume(tag=backend)
        # What was set to False counts in the next resume.
        saver.retain_cpu_backup = False
        outcome.damaged += wrong(saver.get_cpu_backup(tensor), 3)
        saver.pause(tag=backend)
        saver.resume(tag=backend)
        assert saver.get_cpu_backup(tensor) is None and saver.get_cpu_backup(unseen) is None
        outcome.damaged += wrong(tensor, 3) + wrong(unseen, 11)


def a_retained_backup_goes_with_its_tensor(outcome: Outcome) -> None:
    saver = saver_in()
    saver.retain_cpu_backup = True
    for is_paused in (False, True):
        with saver.region(enable_cpu_backup=True):
            tensor, beside = filled(1, 64), filled(2, 2)
        saver.pause()
        if not is_paused:
            saver.resume()
        saver.get_cpu_backup(tensor, zero_copy=True)
        held = resident_bytes()
        del tensor
        torch.cuda.empty_cache()
        if is_paused:
            saver.resume()
        outcome.damaged += wrong(saver.get_cpu_backup(beside), 2) + wrong(beside, 2)
        assert held - resident_bytes() > 48 * MIB, (held, resident_bytes())
        del beside


def retention_can_be_asked_for_in_the_environment(outcome: Outcome) -> None:
    saver = saver_in(TMS_RETAIN_CPU_BACKUP="1")
    assert saver.retain_cpu_backup is True
    with saver.region(enable_cpu_backup=True):
        tensor = filled(1)
    saver.pause()
    saver.resume()
    outcome.damaged += wrong(saver.get_cpu_backup(tensor), 1)


def the_backend_can_be_asked_for_in_the_environment(outcome: Outcome) -> None:
    """With "mmap" no host memory stays after resume(). An argument goes before."""
    saver = saver_in(TMS_INIT_CPU_BACKUP_BACKEND="mmap")
    with saver.region("weights", enable_cpu_backup=True):
        weights = filled(1, 20)
    with saver.region("other", enable_cpu_backup=True, cpu_backup_backend="pinned"):
        other = filled(2, 20)
    saver.pause("weights")
    assert pinned_bytes() >= 20 * MIB and saver.get_cpu_backup(weights) is not None
    saver.resume("weights")
    assert pinned_bytes() == 0 and saver.get_cpu_backup(weights) is None
    saver.pause("other")
    saver.resume("other")
    assert pinned_bytes() >= 20 * MIB
    outcome.damaged += wrong(weights, 1) + wrong(other, 2)


def bytes_come_back_from_the_disk_which_does_not_fill(outcome: Outcome) -> None:
    configure("spill_ram_backed:on")
    with tempfile.TemporaryDirectory() as folder:
        saver = saver_in(TMS_DISK_BACKUP_DIR=f"{folder}/made")
        with saver.region(enable_disk_backup=True):
            large, small = filled(1, 13), torch.full((7,), 10, dtype=torch.uint8, device="cuda")
        with saver.region():
            dropped = filled(2, 20)
        sizes = set()
        for _ in range(3):
            saver.pause()
            sizes.add(spillway.tier_stats()["disk_file_bytes"])
            assert spillway.tier_stats()["region_disk_bytes"] >= large.nbytes
            filled(3, 20)
            torch.cuda.empty_cache()
            saver.resume()
            outcome.damaged += wrong(large, 1) + wrong(small, 10)
        assert len(sizes) == 1, sizes
        del dropped


# ---- Two devices


def each_device_has_its_part_of_a_tag(outcome: Outcome) -> None:
    saver = saver_in()
    held = []
    for index in range(2):
        torch.cuda.set_device(index)
        with saver.region(tag="tag", enable_cpu_backup=True, cpu_backup_backend="mmap"):
            held.append(filled(index + 1, 32))
    before = [used(index) for index in range(2)]
    torch.cuda.set_device(0)
    saver.pause("tag")
    assert [before[index] - used(index) for index in range(2)] == [32 * MIB] * 2
    for index, tensor in enumerate(held):
        outcome.damaged += wrong(saver.get_cpu_backup(tensor), index + 1)
    saver.resume()
    assert [used(index) for index in range(2)] == before and torch.cuda.current_device() == 0
    for index, tensor in enumerate(held):
        with torch.cuda.device(index), torch.cuda.stream(torch.cuda.Stream()):
            outcome.damaged += wrong(tensor.clone(), index + 1)


def everything_is_that_of_all_devices(outcome: Outcome) -> None:
    saver = saver_in(**EVERYTHING)
    first = filled(1)
    saver.pause()
    second = filled(2, device="cuda:1")
    outcome.damaged += wrong(second, 2)
    saver.pause()
    assert used(0) == used(1) == 0
    saver.resume()
    outcome.damaged += wrong(first, 1) + wrong(second, 2)
    assert not [index for index in range(2) if torch.cuda.memory_allocated(index) != 8 * MIB]


PROGRAMS: list[Program] = [
    memory_leaves_and_comes_back_to_its_address,
    a_graph_is_valid_when_its_memory_is_back,
    tags_are_paused_one_by_one,
    what_is_freed_while_it_is_paused_costs_the_others_nothing,
    bytes_with_a_backup_come_back,
    a_retained_backup_keeps_its_address,
    a_retained_backup_goes_with_its_tensor,
    retention_can_be_asked_for_in_the_environment,
    the_backend_can_be_asked_for_in_the_environment,
    bytes_come_back_from_the_disk_which_does_not_fill,
]

OnEverySeed = every_seed(PROGRAMS)
OnTwoDevices = every_seed(
    [each_device_has_its_part_of_a_tag, everything_is_that_of_all_devices], "capacity:256MiB,devices:2"
)


if __name__ == "__main__":
    unittest.main()
