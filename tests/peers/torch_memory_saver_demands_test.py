"""What the examples of torch_memory_saver demand, each by its idea, on the late simulated device.

Programs run in processes of their own, so each has the environment that it sets before it imports the module.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import spillway
from on_seeds import Outcome, Program, check_counters, torch
from spilling import configure, every_seed, pinned_bytes, refused

MIB = 1 << 20
MODULE = "spillway.compat.torch_memory_saver"
EVERYTHING = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "yes"}


def saver_in(**environment: str) -> Any:
    assert MODULE not in sys.modules
    os.environ.update(environment)
    return importlib.import_module(MODULE).torch_memory_saver


def filled(value: int, mebibytes: int = 8, device: str = "cuda") -> Any:
    return torch.full((mebibytes * MIB // 4,), value, dtype=torch.int32, device=device)


def wrong(tensor: Any, value: int) -> int:
    return int((tensor.cpu() != value).any())


def used(index: int = 0) -> int:
    torch.cuda.synchronize(index)
    free, total = torch.cuda.mem_get_info(index)
    return int(total - free)


def resident_bytes() -> int:
    """Of the process, without what it shares, as the simulated device's memory."""
    status = Path("/proc/self/status").read_text().split("RssAnon:")[1]
    return int(status.split()[0]) * 1024


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


# ---- The whole process


def everything_is_in_the_default_tag(outcome: Outcome) -> None:
    """What other threads allocate, as that of the backward pass, included."""
    saver = saver_in(**EVERYTHING)
    weights = torch.full((2 * MIB,), 2.0, device="cuda", requires_grad=True)
    (weights * 3).sum().backward()
    tensors = [weights.detach()]
    thread = threading.Thread(target=lambda: tensors.append(filled(5)))
    thread.start()
    thread.join()
    weights.grad.fill_(4)
    for _ in range(2):
        saver.pause("default")
        assert used() == 0 and torch.cuda.memory_allocated() == 0
        saver.resume("default")
        outcome.damaged += wrong(weights.detach(), 2) + wrong(weights.grad, 4) + wrong(tensors[1], 5)
    check_counters()


def without_a_backup_everything_is_dropped(outcome: Outcome) -> None:
    saver = saver_in(TMS_INIT_ENABLE="true")
    tensor = filled(1)
    saver.pause()
    assert saver.get_cpu_backup(tensor) is None
    assert spillway.tier_stats()["region_host_bytes"] == 0 and used() == 0
    saver.resume()
    tensor.fill_(2)
    outcome.damaged += wrong(tensor, 2)


def everything_can_go_to_the_disk(outcome: Outcome) -> None:
    configure("spill_ram_backed:on")
    with tempfile.TemporaryDirectory() as folder:
        saver = saver_in(TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_DISK_BACKUP="1", TMS_DISK_BACKUP_DIR=folder)
        tensor = filled(1)
        saver.pause()
        assert spillway.tier_stats()["region_disk_bytes"] >= tensor.nbytes
        saver.resume()
        outcome.damaged += wrong(tensor, 1)


def a_training_process_makes_room_for_others(outcome: Outcome) -> None:
    """It leaves the device, computes outside of all regions, and goes on where it was."""
    saver = saver_in(**EVERYTHING)
    weights = [filled(1, size) for size in (32, 8, 1)]
    filled(0, 60)  # activations
    saver.pause()
    paused = used()
    assert paused == 0
    with saver.disable():
        other = filled(3, 100)
        outcome.damaged += wrong(other, 3)
        assert used() >= 100 * MIB
        refused("inside of a region", saver.disable().__enter__)
        del other
    assert used() == paused, used()
    saver.resume()
    outcome.damaged += sum(wrong(tensor, 1) for tensor in weights)
    filled(0, 60)
    # What is free serves others, however large.
    free, total = torch.cuda.mem_get_info()
    parts = [torch.full((total * 3 // 10,), 7, dtype=torch.uint8, device="cuda") for _ in range(2)]
    del parts
    whole = torch.full((total * 6 // 10,), 7, dtype=torch.uint8, device="cuda")
    outcome.damaged += wrong(whole, 7) + sum(wrong(tensor, 1) for tensor in weights)


def a_region_inside_goes_its_own_way(outcome: Outcome) -> None:
    saver = saver_in(**EVERYTHING)
    weights = filled(1)
    with saver.region(tag="grad_buffer", enable_cpu_backup=False):
        gradients = filled(2)
        with saver.region(tag="weights", enable_cpu_backup=True):
            inner = filled(3)
        beside = filled(4)
    after = filled(5)
    saver.pause("grad_buffer")
    assert torch.cuda.memory_allocated() == weights.nbytes + inner.nbytes + after.nbytes
    saver.pause()
    assert used() == 0 and spillway.tier_stats()["region_host_bytes"] == 24 * MIB
    saver.resume()
    gradients.fill_(6)
    outcome.damaged += wrong(weights, 1) + wrong(inner, 3) + wrong(after, 5) + wrong(gradients, 6)
    late = filled(7)
    saver.pause()
    saver.resume()
    outcome.damaged += wrong(late, 7)
    del beside


def a_pause_that_fails_is_tried_again(outcome: Outcome) -> None:
    configure("pinned_limit:16MiB")
    saver = saver_in(**EVERYTHING)
    weights = filled(1, 40)
    for _ in range(2):
        refused("host memory has no room", saver.pause)
        outcome.damaged += wrong(weights, 1)
        more = filled(2, 1)
        outcome.damaged += wrong(more, 2)
    configure("pinned_limit:1GiB")
    spillway.empty_host_cache()
    saver.pause()
    assert used() == 0
    saver.resume()
    outcome.damaged += wrong(weights, 1) + wrong(more, 2)


# ---- What ends the process there, or goes wrong


def what_is_allocated_under_a_paused_tag_is_live(outcome: Outcome) -> None:
    saver = saver_in()
    first = {}
    for keeps in (True, False):
        with saver.region("tag", enable_cpu_backup=keeps):
            first[keeps] = filled(1)
    saver.pause("tag")
    later = {}
    for keeps in (True, False):
        with saver.region("tag", enable_cpu_backup=keeps):
            later[keeps] = filled(2)
        outcome.damaged += wrong(later[keeps], 2)
    assert torch.cuda.memory_allocated() == 16 * MIB
    # Both leave, and both come back; what is paused stays so.
    for _ in range(2):
        saver.pause("tag")
        assert torch.cuda.memory_allocated() == 0
    outcome.damaged += wrong(saver.get_cpu_backup(first[True]), 1) + wrong(saver.get_cpu_backup(later[True]), 2)
    saver.resume("tag")
    outcome.damaged += wrong(first[True], 1) + wrong(later[True], 2)
    check_counters()


def what_is_allocated_while_everything_is_paused_is_live(outcome: Outcome) -> None:
    saver = saver_in(**EVERYTHING)
    held = []
    for value in range(3):
        held.append(filled(value))
        outcome.damaged += wrong(held[-1], value)
        saver.pause()
        assert used() == 0
    saver.resume()
    for value, tensor in enumerate(held):
        outcome.damaged += wrong(tensor, value)
    # There is one region again, and room that is free in it is used.
    before = used()
    del held[0]
    held.append(filled(3))
    assert used() == before


def a_region_is_paused_while_it_is_open(outcome: Outcome) -> None:
    saver = saver_in()
    with saver.region("outer", enable_cpu_backup=True):
        with saver.region("tag", enable_cpu_backup=True):
            before = filled(1)
            saver.pause()
            assert used() == 0
            after = filled(2)
            outcome.damaged += wrong(after, 2)
            saver.resume()
            outcome.damaged += wrong(before, 1)
            last = filled(3)
        outer = filled(4)
    outside = filled(5)
    saver.pause("tag")
    assert torch.cuda.memory_allocated() == outer.nbytes + outside.nbytes
    saver.pause("outer")
    assert torch.cuda.memory_allocated() == outside.nbytes
    saver.resume()
    outcome.damaged += sum(wrong(tensor, value + 1) for value, tensor in enumerate((before, after, last, outer)))


def a_region_that_another_thread_has_open_stays(outcome: Outcome) -> None:
    saver = saver_in()
    opened, paused = threading.Event(), threading.Event()
    held = []

    def allocate() -> None:
        with saver.region("tag", enable_cpu_backup=True):
            held.append(filled(1))
            opened.set()
            paused.wait()

    thread = threading.Thread(target=allocate)
    thread.start()
    opened.wait()
    refused("open", saver.pause, "tag")
    outcome.damaged += wrong(held[0], 1)
    paused.set()
    thread.join()
    saver.pause("tag")
    saver.resume("tag")
    outcome.damaged += wrong(held[0], 1)


def graphs_are_captured_while_their_tag_is_paused(outcome: Outcome) -> None:
    saver = saver_in()
    source = filled(1)
    captured: list[Any] = []
    pool = torch.cuda.graph_pool_handle()
    torch.cuda.synchronize()
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with saver.cuda_graph(graph, pool=pool, tag="graph", enable_cpu_backup=True):
            result = source.clone()
        captured.append((graph, result))
        saver.pause("graph")
    saver.resume("graph")
    for value, (graph, result) in enumerate(captured):
        source.fill_(value)
        graph.replay()
        outcome.damaged += wrong(result, value)


# ---- How others reach it


def others_switch_it_off_and_on_by_its_symbols(outcome: Outcome) -> None:
    """As patches of DeepEP's buffers do, and tests that look at the state."""
    for environment, is_on in (({}, False), (EVERYTHING, True)):
        saver = saver_in(**environment)
        saver._ensure_initialized()
        cdll = saver._impl._binary_wrapper.cdll
        state = (cdll.tms_get_interesting_region(), cdll.tms_get_enable_cpu_backup(), cdll.tms_get_current_tag())
        assert state == (is_on, is_on, b"default") and cdll.tms_get_cpu_backup_backend() == b"pinned"
        with saver.region("tag", enable_cpu_backup=True, cpu_backup_backend="mmap"):
            assert cdll.tms_get_current_tag() == b"tag" and cdll.tms_get_cpu_backup_backend() == b"mmap"
            inside = filled(1)
            cdll.tms_set_interesting_region(False)
            outside = filled(2)
            cdll.tms_set_interesting_region(True)
            again = filled(3)
        assert cdll.tms_get_current_tag() == b"default" and cdll.tms_get_interesting_region() == is_on
        cdll.tms_set_interesting_region(True)
        cdll.tms_set_current_tag(b"other")
        cdll.tms_set_enable_cpu_backup(True)
        other = filled(4)
        cdll.tms_set_interesting_region(False)
        for tag, gone in ((b"tag", 16 * MIB), (b"other", 24 * MIB)):
            before = 32 * MIB
            assert cdll.tms_pause(tag) == 0 and torch.cuda.memory_allocated() == before - gone
        outcome.damaged += wrong(outside, 2)
        assert cdll.tms_resume(None) == 0
        outcome.damaged += wrong(inside, 1) + wrong(again, 3) + wrong(other, 4)
        cdll.tms_set_retain_cpu_backup(True)
        assert saver.retain_cpu_backup and cdll.tms_get_retain_cpu_backup()
        del inside, outside, again, other
        sys.modules.pop(MODULE)


def what_the_environment_cannot_mean_is_one_error(outcome: Outcome) -> None:
    for name, value in (
        ("TMS_INIT_ENABLE", "on"),
        ("TMS_INIT_ENABLE_CPU_BACKUP", "2"),
        ("TMS_RETAIN_CPU_BACKUP", "maybe"),
        ("TMS_INIT_CPU_BACKUP_BACKEND", "paper"),
    ):
        refused(f"{name}={value!r} is not", saver_in, **{name: value})
        os.environ[name] = ""  # as what is not set
    refused("exclude each other", saver_in, TMS_INIT_ENABLE_CPU_BACKUP="1", TMS_INIT_ENABLE_DISK_BACKUP="1")
    os.environ["TMS_INIT_ENABLE_DISK_BACKUP"] = "0"
    saver = saver_in()
    # As there, these are errors of values too.
    for arguments in ({"cpu_backup_backend": "mmap"}, {"enable_cpu_backup": True, "enable_disk_backup": True}):
        try:
            saver.region(**arguments).__enter__()
        except ValueError:
            pass
        else:
            raise AssertionError(arguments)
    outcome.damaged += wrong(filled(1), 1)


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
    everything_is_in_the_default_tag,
    without_a_backup_everything_is_dropped,
    everything_can_go_to_the_disk,
    a_training_process_makes_room_for_others,
    a_region_inside_goes_its_own_way,
    a_pause_that_fails_is_tried_again,
    what_is_allocated_under_a_paused_tag_is_live,
    what_is_allocated_while_everything_is_paused_is_live,
    a_region_is_paused_while_it_is_open,
    a_region_that_another_thread_has_open_stays,
    graphs_are_captured_while_their_tag_is_paused,
    others_switch_it_off_and_on_by_its_symbols,
    what_the_environment_cannot_mean_is_one_error,
]

OnEverySeed = every_seed(PROGRAMS)
OnTwoDevices = every_seed(
    [each_device_has_its_part_of_a_tag, everything_is_that_of_all_devices], "capacity:256MiB,devices:2"
)


class StartedProcesses(unittest.TestCase):
    def test_they_have_what_the_environment_says(self) -> None:
        """And what was to be loaded before stays so."""
        text = f"""
import torch
from spillway import sim
from {MODULE} import torch_memory_saver as saver
sim.touch_operands()
tensor = torch.full((1 << 20,), 5, device="cuda")
saver.pause()
print(torch.cuda.memory_allocated(), int(saver.get_cpu_backup(tensor).eq(5).all()))
"""
        module, preloaded = importlib.import_module(MODULE), os.environ.get("LD_PRELOAD")
        given = {**EVERYTHING, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}/nowhere"}
        with mock.patch.dict(os.environ, given), module.configure_subprocess():
            self.assertIn("/nowhere", os.environ["PYTHONPATH"].split(os.pathsep))
            self.assertEqual(os.environ.get("LD_PRELOAD"), preloaded)
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        self.assertEqual(done.stdout, "0 1\n", done.stderr)

    def test_where_spillway_is_turned_off_they_run_as_if_nothing_were_asked_for(self) -> None:
        text = f"""
import torch, spillway
spillway.install()
from {MODULE} import torch_memory_saver as saver
with saver.region("tag", enable_cpu_backup=True):
    tensor = torch.zeros(1 << 20, device="cuda")
    with saver.disable():
        torch.zeros(1, device="cuda")
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with saver.cuda_graph(graph, tag="graph"):
    copy = tensor.clone()
before = torch.cuda.memory_allocated()
saver.pause()
saver.pause("tag")
assert torch.cuda.memory_allocated() == before and saver.get_cpu_backup(tensor) is None
saver.resume()
print(saver.enabled, float(tensor[5]))
"""
        for given in ({}, EVERYTHING):
            environment = {**os.environ, "SPILLWAY_DISABLE": "1", **given}
            done = subprocess.run(
                [sys.executable, "-c", text], capture_output=True, text=True, check=False, env=environment
            )
            self.assertEqual(done.stdout, "False 0.0\n", done.stderr)

    def test_without_spillway_the_environment_is_not_ignored(self) -> None:
        text = f"import {MODULE}"
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=False, env={**os.environ, **EVERYTHING}
        )
        self.assertIn("SpillwayError: TMS_INIT_ENABLE needs Spillway's memory", done.stderr)


if __name__ == "__main__":
    unittest.main()
