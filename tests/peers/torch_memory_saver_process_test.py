"""What the examples of torch_memory_saver demand of whole processes, and of those that they start."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import spillway
from on_seeds import Outcome, Program, check_counters, torch
from spilling import configure, every_seed, refused
from torch_memory_saver_demands import EVERYTHING, MIB, MODULE, filled, saver_in, used, wrong

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


PROGRAMS: list[Program] = [
    everything_is_in_the_default_tag,
    without_a_backup_everything_is_dropped,
    everything_can_go_to_the_disk,
    a_training_process_makes_room_for_others,
    a_region_inside_goes_its_own_way,
    a_pause_that_fails_is_tried_again,
    others_switch_it_off_and_on_by_its_symbols,
    what_the_environment_cannot_mean_is_one_error,
]

OnEverySeed = every_seed(PROGRAMS)


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
