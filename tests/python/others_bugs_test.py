"""What went wrong in other packages that move memory, one program each, on the late simulated device."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import activations_test
import spillway
from on_seeds import Outcome, Program, check_counters, torch
from spilling import configure, every_seed, on_disk, pinned_bytes, refused
from spillway._offload.tiers import tiers
from spillway.compat.torch_memory_saver import torch_memory_saver as saver
from spillway.compat.vllm_sleep import SleepingAllocator

MIB = 1 << 20
CYCLES = 200


def filled(value: int, mebibytes: int = 4) -> Any:
    return torch.full((mebibytes * MIB // 4,), value, dtype=torch.int32, device="cuda")


def wrong(tensor: Any, value: int) -> int:
    return int((tensor.cpu() != value).any())


def in_threads(*functions: Callable[[], object]) -> None:
    """Runs them at the same time, and raises what one of them raised."""
    problems: list[BaseException] = []
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], object]) -> None:
        try:
            barrier.wait()
            function()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=[function]) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


class Held:
    """Descriptors of the process, and its mappings, of which threads and the heap have some more at times."""

    def __init__(self) -> None:
        self.files = len(os.listdir("/proc/self/fd"))
        self.maps = len(Path("/proc/self/maps").read_text().splitlines())

    def check(self) -> None:
        now = Held()
        assert now.files == self.files and now.maps < self.maps + CYCLES // 4, (vars(self), vars(now))


def tensors_are_freed_while_their_region_moves(outcome: Outcome) -> None:
    """LMCache#1858: what two threads freed at once, without a lock, was freed twice."""
    with spillway.region("a"):
        kept = filled(1)
        left, right = [filled(2, 1) for _ in range(20)], [filled(3, 1) for _ in range(20)]

    def move() -> None:
        for _ in range(10):
            spillway.evict("a")
            spillway.restore("a")

    in_threads(left.clear, right.clear, move)
    outcome.damaged += wrong(kept, 1)
    check_counters()


def two_spills_share_what_they_copy_through(outcome: Outcome) -> None:
    """cudf-spark#12211: two spills waited for each other's part of one pool of bounce buffers."""
    configure("pinned_limit:16MiB")
    held = {}
    for number in range(2):
        with spillway.region(f"r{number}"):
            held[f"r{number}"] = filled(number, 40)
    for _ in range(3):
        in_threads(*(functools.partial(spillway.evict, tag, "disk") for tag in held))
        in_threads(*(functools.partial(spillway.restore, tag) for tag in held))
        outcome.damaged += sum(wrong(tensor, number) for number, tensor in enumerate(held.values()))


def no_room_anywhere_is_said_once(outcome: Outcome) -> None:
    """LMCache#2942: an allocation tried for ever where nothing could be evicted."""
    configure("pinned_limit:1MiB")
    with spillway.region("a", evictable=1):
        tensor = filled(1, 40)
    refused("", spillway.evict, "a")
    try:
        filled(2, 250)
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("there was room")
    outcome.damaged += wrong(tensor, 1)


def a_full_disk_is_no_broken_one(outcome: Outcome) -> None:
    """riffle#588: no space left was counted as corruption, and the disk given up."""
    with tempfile.TemporaryDirectory() as folder:
        configure(f"spill_dir:{folder},spill_ram_backed:on,spill_limit:32MiB")
        with spillway.region("large"):
            large = filled(1, 40)
        with spillway.region("small"):
            small = filled(2)
        for _ in range(20):
            refused("room", spillway.evict, "large", "disk")
        spillway.evict("small", "disk")
        assert spillway.tier_stats()["disk_failed_writes"] == 0
        spillway.restore("small")
        outcome.damaged += wrong(large, 1) + wrong(small, 2)


def moves_leave_nothing_open(outcome: Outcome, *, to: str) -> None:
    """DeepSpeed PR 8075: a descriptor was left by each operation on the disk."""
    with spillway.region("a"):
        tensor = filled(1, 1)
    for cycle in range(CYCLES):
        spillway.evict("a", to)
        spillway.restore("a")
        if cycle < 10:
            held = Held()
    held.check()
    outcome.damaged += wrong(tensor, 1)


def sleeping_often_leaks_nothing(outcome: Outcome) -> None:
    """vllm#47654: the device had less memory after each sleep. vllm#16663, torch_memory_saver#90: the host after it.

    What is pinned for a sleep serves the next one, and can be given back.
    """
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool("weights"):
        weights = filled(1, 2)
    with allocator.use_memory_pool("kv_cache"):
        cache = filled(2, 2)
    for cycle in range(CYCLES):
        allocator.sleep(("weights",))
        asleep = spillway.tier_stats()["region_host_bytes"]
        allocator.wake_up()
        assert spillway.tier_stats()["region_host_bytes"] == 0 < asleep
        here = (asleep, pinned_bytes(), torch.cuda.mem_get_info(), torch.cuda.memory_allocated())
        if cycle < 10:
            first, held = here, Held()
        assert here == first, (cycle, here, first)
    held.check()
    assert pinned_bytes() > 0
    spillway.empty_host_cache()
    assert pinned_bytes() == 0, pinned_bytes()
    outcome.damaged += wrong(weights, 1)
    del cache


def other_threads_run_while_one_waits(outcome: Outcome) -> None:
    """DeepSpeed PR 7727 and PR 8196: the wait for a copy held the interpreter's lock."""
    with spillway.region("a"):
        tensor = filled(1)
    torch.cuda.synchronize()
    libc, go = ctypes.CDLL(None), threading.Event()
    semaphore = ctypes.create_string_buffer(64)  # a sem_t
    assert libc.sem_init(semaphore, 0, 0) == 0
    thread = threading.Thread(target=lambda: go.wait() and libc.sem_post(semaphore))
    thread.start()
    # What the eviction waits for ends when the thread has run, which it cannot before the call.
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc(stream, libc.sem_wait, semaphore) == 0
    evict, interval = tiers().spw_region_evict, sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    signal.alarm(120)  # it would wait for ever
    go.set()
    assert evict(0, b"a", 1) == 0
    signal.alarm(0)
    sys.setswitchinterval(interval)
    thread.join()
    spillway.restore("a")
    outcome.damaged += wrong(tensor, 1)


def memory_that_a_network_knows_stays(outcome: Outcome) -> None:
    """torch_memory_saver#88: NCCL's registrations showed memory that had been replaced in a pause."""
    with saver.region("buffers", enable_cpu_backup=True):
        buffers = filled(1)
    (tag,) = spillway.regions()
    spillway.pin(tag)
    place = buffers.data_ptr()
    refused("pinned", saver.pause, "buffers")
    outcome.damaged += wrong(buffers, 1)
    spillway.unpin(tag)
    saver.pause("buffers")
    saver.resume("buffers")
    assert buffers.data_ptr() == place


def sleep_waits_for_the_work_in_flight(outcome: Outcome) -> None:
    """vllm#28714: memory went while requests still ran on it."""
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool("weights"):
        weights = filled(1, 16)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for value in range(2, 5):
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[value % 2]):
            weights.fill_(value)
        allocator.sleep(("weights",))
        allocator.wake_up()
        outcome.damaged += wrong(weights, value)


def waking_a_part_touches_nothing_else(outcome: Outcome) -> None:
    """vllm-omni#4473: with some tags awake, others' addresses were used, and the output was silently wrong."""
    allocator = SleepingAllocator.get_instance()
    held = {}
    for number, tag in enumerate(("weights", "kv_cache", "buffers")):
        with allocator.use_memory_pool(tag):
            held[tag] = filled(number, 8)
    for awake in held:
        allocator.sleep(tuple(held))
        allocator.wake_up([awake])
        others = [filled(-1, 8) for _ in range(4)]
        torch.cuda.synchronize()
        assert [tag for tag, row in spillway.regions().items() if row["device_bytes"]] == [awake]
        allocator.wake_up()
        del others
        outcome.damaged += sum(wrong(tensor, number) for number, tensor in enumerate(held.values()))


def nothing_to_move_is_moved_at_once(outcome: Outcome) -> None:
    """DeepSpeed#7712: a wait for no operations did not end."""
    with spillway.region("empty"):
        pass
    for to in ("host", "nowhere"):
        spillway.evict("empty", to)
        spillway.prefetch("empty")
        spillway.restore("empty")
    filled(1)
    saver.pause()
    saver.resume()
    SleepingAllocator.get_instance().wake_up([])


def sleep_gives_all_memory_back(outcome: Outcome) -> None:
    """vllm#32714: what a sleep gave back was a third of what the device should have had."""
    allocator = SleepingAllocator.get_instance()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    with allocator.use_memory_pool("weights"):
        weights = [filled(number, 1 + number % 7) for number in range(24)]
        del weights[::3]  # what the allocator keeps for later is the device's too
    with allocator.use_memory_pool("kv_cache"):
        cache = filled(3, 40)
    for _ in range(2):
        allocator.sleep(("weights",))
        assert torch.cuda.mem_get_info()[0] == free, (torch.cuda.mem_get_info(), free)
        allocator.wake_up()
    kept = [number for number in range(24) if number % 3]
    outcome.damaged += sum(wrong(tensor, number) for tensor, number in zip(weights, kept, strict=True))
    del cache


def what_is_freed_in_a_region_goes_back(outcome: Outcome) -> None:
    """vllm, of pytorch#145168: what was freed inside of a pool that lives on stayed, and was copied with the rest."""
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    with spillway.region("weights"):
        large, small = filled(1, 200), filled(2, 2)
    del large
    torch.cuda.empty_cache()
    assert free - torch.cuda.mem_get_info()[0] == 2 * MIB
    # Nor is it kept from others before.
    with spillway.region("weights"):
        filled(3, 100)
    others = [filled(4, 50) for _ in range(4)]
    outcome.damaged += wrong(others[0], 4)
    del others
    spillway.evict("weights")
    assert spillway.regions()["weights"]["host_bytes"] == 2 * MIB
    spillway.restore("weights")
    outcome.damaged += wrong(small, 2)
    # Copies of what is freed meanwhile go.
    with spillway.region("weights"):
        large = filled(5, 40)
    spillway.evict("weights")
    del large
    torch.cuda.empty_cache()
    assert spillway.regions()["weights"]["host_bytes"] == 2 * MIB
    del small
    torch.cuda.empty_cache()
    assert spillway.regions()["weights"]["host_bytes"] == 0
    spillway.restore("weights")


def weights_are_quantised_where_they_sleep(outcome: Outcome) -> None:
    """vllm: a model that is loaded in 16 bits inside of the pool and quantised there took both for ever."""
    allocator = SleepingAllocator.get_instance()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    with allocator.use_memory_pool("weights"):
        full = [filled(number, 16) for number in range(6)]
        quantised = [torch.full_like(tensor, number, dtype=torch.int8) for number, tensor in enumerate(full)]
        del full
    assert free - torch.cuda.mem_get_info()[0] == 24 * MIB
    allocator.sleep(("weights",))
    assert spillway.tier_stats()["region_host_bytes"] == 24 * MIB
    allocator.wake_up()
    outcome.damaged += sum(wrong(tensor, number) for number, tensor in enumerate(quantised))


def weights_are_replaced_by_larger_ones(outcome: Outcome) -> None:
    """vllm#48680: freed blocks of a sleeping pool did not join, and the device was full with half of it live."""
    with spillway.region("weights"):
        held = [filled(number, 10) for number in range(16)]
        for number in range(16):
            held[number] = filled(number, 11)
    assert torch.cuda.memory_reserved() <= (16 * 11 + 10 + 2) * MIB
    for _ in range(2):
        spillway.evict("weights")
        filled(-1, 150)
        spillway.restore("weights")
    outcome.damaged += sum(wrong(tensor, number) for number, tensor in enumerate(held))


def waking_without_room_leaves_nothing(outcome: Outcome) -> None:
    """vllm#34600: where a part had no room, the rest stayed mapped. LMCache#3022 and #3006: it was answered unread."""
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool("weights"):
        weights = [filled(number, 20) for number in range(5)]
    allocator.sleep(("weights",))
    # As another process would: Spillway finds out when it has mapped some of them.
    driver, other = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert driver.cuMemAlloc_v2(ctypes.byref(other), ctypes.c_size_t(200 * MIB)) == 0
    free = torch.cuda.mem_get_info()
    for cycle in range(CYCLES):
        refused("out of memory", allocator.wake_up)
        assert torch.cuda.mem_get_info() == free and torch.cuda.memory_allocated() == 0, cycle
        assert spillway.regions()["weights"]["device_bytes"] == 0
        if cycle < 10:
            held = Held()
    held.check()
    assert driver.cuMemFree_v2(other) == 0
    allocator.wake_up()
    outcome.damaged += sum(wrong(tensor, number) for number, tensor in enumerate(weights))


def new_weights_are_what_runs(outcome: Outcome) -> None:
    """vllm#29341, sglang#15246: weights that were loaded after a sleep had dropped the old ones gave gibberish."""
    allocator = SleepingAllocator.get_instance()
    held = {}
    for number, tag in enumerate(("weights", "buffers", "kv_cache")):
        with allocator.use_memory_pool(tag):
            held[tag] = filled(number, 8)
    graph, results = torch.cuda.CUDAGraph(), {tag: torch.zeros_like(tensor) for tag, tensor in held.items()}
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for tag, tensor in held.items():
            results[tag].copy_(tensor)
    for value in (5, 6):
        allocator.sleep(("buffers",))
        filled(-1, 100)
        torch.cuda.empty_cache()
        allocator.wake_up(["weights"])
        held["weights"].fill_(value)
        allocator.wake_up()
        graph.replay()
        outcome.damaged += wrong(results["weights"], value) + wrong(results["buffers"], 1)


def what_fails_leaves_no_pin(outcome: Outcome) -> None:
    """LMCache#2951: what was pinned for a read stayed so when there was no room for it, until nothing could move."""
    with spillway.region("a"):
        tensor = filled(1, 100)
    spillway.evict("a")
    other = filled(2, 200)
    for _ in range(3):
        refused("out of memory", spillway.resident("a").__enter__)
        assert spillway.regions()["a"]["pins"] == 0
    outcome.damaged += wrong(other, 2)
    del other
    torch.cuda.empty_cache()
    try:
        with spillway.resident("a"):
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    spillway.evict("a")
    spillway.restore("a")
    outcome.damaged += wrong(tensor, 1)


def nobody_waits_for_activations(outcome: Outcome) -> None:
    """DeepSpeed#1130: each copy back was waited for. torchtune#2076: each copy out pinned memory, which waits too."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.spwSimCalls.restype = driver.spwSimHostWaits.restype = ctypes.c_uint64
    model = activations_test.Model()
    handle = spillway.offload_activations(model, ["layers.*"])
    for step in range(6):
        torch.cuda.synchronize()
        before = [driver.spwSimHostWaits(), driver.spwSimCalls(b"cuMemHostRegister")]
        model(activations_test.batch()).backward(torch.ones(activations_test.WIDTH, device="cuda"))
        after = [driver.spwSimHostWaits(), driver.spwSimCalls(b"cuMemHostRegister")]
        assert step < 2 or after == before, (step, after, before)
        outcome.damaged += model.damaged(12)
    assert handle.stats()["fetched_bytes"] > 0, handle.stats()


PROGRAMS: list[Program] = [
    tensors_are_freed_while_their_region_moves,
    on_disk(two_spills_share_what_they_copy_through),
    no_room_anywhere_is_said_once,
    a_full_disk_is_no_broken_one,
    functools.partial(moves_leave_nothing_open, to="host"),
    on_disk(functools.partial(moves_leave_nothing_open, to="disk")),
    sleeping_often_leaks_nothing,
    other_threads_run_while_one_waits,
    memory_that_a_network_knows_stays,
    sleep_waits_for_the_work_in_flight,
    waking_a_part_touches_nothing_else,
    nothing_to_move_is_moved_at_once,
    sleep_gives_all_memory_back,
    what_is_freed_in_a_region_goes_back,
    weights_are_quantised_where_they_sleep,
    weights_are_replaced_by_larger_ones,
    waking_without_room_leaves_nothing,
    new_weights_are_what_runs,
    what_fails_leaves_no_pin,
    nobody_waits_for_activations,
]

OnEverySeed = every_seed(PROGRAMS)

if __name__ == "__main__":
    unittest.main()
