"""Regions under PyTorch: tensors leave the device and come back to their addresses, graphs over them stay valid, and a
mistake costs one sentence.
"""

from __future__ import annotations

import functools
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import Any

import spillway
from on_seeds import ON_GPU, Outcome, Program, check_counters, free_bytes, torch
from spilling import configure, every_seed, on_disk, refused
from spillway._library import option

MIB = 1 << 20


def filled(value: int, mebibytes: int = 6) -> Any:
    return torch.full((mebibytes * MIB // 4,), value, dtype=torch.int32, device="cuda")


def allocated() -> int:
    count: int = torch.cuda.memory_allocated()
    return count


def crowd(value: int = -1) -> None:
    """Another program's memory, of all that is free, written and given back."""
    blocks = []
    for _ in range(free_bytes() // (8 * MIB) - 2):
        blocks.append(filled(value, 8))
    torch.cuda.synchronize()
    del blocks
    torch.cuda.empty_cache()


# ---- Programs


def tensors_come_back(outcome: Outcome, *, to: str) -> None:
    with spillway.region("weights"):
        weights = [filled(value, 3 + value) for value in range(4)]
    outside = filled(77)
    places = [tensor.data_ptr() for tensor in weights]
    before = allocated()
    for _ in range(2):
        spillway.evict("weights", to)
        assert allocated() <= before - sum(tensor.nbytes for tensor in weights)
        crowd()
        spillway.restore("weights")
        assert allocated() == before
        assert [tensor.data_ptr() for tensor in weights] == places
        outcome.damaged += sum(int((tensor.cpu() != value).any()) for value, tensor in enumerate(weights))
        weights[0].add_(0)
        check_counters()
    outcome.damaged += int((outside.cpu() != 77).any())


def graph_over_a_region_stays_valid(outcome: Outcome) -> None:
    with spillway.region("weights"):
        weights = filled(5)
    result = torch.zeros_like(weights)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result.copy_(weights)
    for value in (5, 6):
        weights.fill_(value)
        spillway.evict("weights")
        crowd()
        spillway.prefetch("weights")
        spillway.restore("weights")
        result.zero_()
        graph.replay()
        outcome.damaged += int((result.cpu() != value).any())
    check_counters()


def graph_in_a_region_keeps_its_content(outcome: Outcome) -> None:
    source = filled(1)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=spillway.region_pool("graph")):
        made = source.clone()
        result = made.clone()
    for value in (3, 4):
        source.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        spillway.evict("graph")
        crowd()
        spillway.restore("graph")
        outcome.damaged += int((made.cpu() != value).any()) + int((result.cpu() != value).any())
    check_counters()


def what_must_stay_stays(outcome: Outcome) -> None:
    with spillway.region("a"):
        tensor = filled(1)
    with spillway.resident("a"):
        refused("pinned", spillway.evict, "a")
    spillway.pin("a")
    refused("pinned 1 times", spillway.evict, "a")
    spillway.unpin("a")
    spillway.evict("a")
    with spillway.resident("a"):
        outcome.damaged += int((tensor.cpu() != 1).any())
        assert spillway.regions()["a"]["pins"] == 1
    spillway.evict("a", to="nowhere")
    spillway.restore("a")
    spillway.release("a")
    assert spillway.regions() == {}
    tensor.fill_(2)


def what_is_released_lives_on(outcome: Outcome, *, to: str) -> None:
    with spillway.region("a"):
        tensor = filled(1)
        refused("is open: end it", spillway.release, "a")
    assert spillway.regions()["a"]["pins"] == 0
    place = tensor.data_ptr()
    spillway.evict("a", to)
    # Without room for it, it stays a region.
    other = torch.empty(free_bytes() - 2 * MIB, dtype=torch.uint8, device="cuda")
    refused("out of memory", spillway.release, "a")
    del other
    torch.cuda.empty_cache()
    spillway.release("a")
    assert spillway.regions() == {} and tensor.data_ptr() == place
    outcome.damaged += int((tensor.cpu() != 1).any())
    refused("has no region 'a'", spillway.release, "a")


def only_this_threads_memory_is_taken(outcome: Outcome) -> None:
    made: list[Any] = []
    with spillway.region("outer"), spillway.region("inner", evictable=2):
        mine = filled(1)
        thread = threading.Thread(target=lambda: made.append(filled(2)))
        thread.start()
        thread.join()
    assert spillway.regions()["inner"]["priority"] == 2
    before = allocated()
    spillway.evict("inner")
    assert before - allocated() == mine.nbytes <= spillway.regions()["inner"]["host_bytes"]
    outcome.damaged += int((made[0].cpu() != 2).any())
    # Memory of what is away may be freed.
    del mine
    spillway.evict("outer")
    spillway.restore("inner")


def short_of_memory_evicts_what_may_go(outcome: Outcome) -> None:
    with spillway.region("cold", evictable=1):
        cold = filled(9, 100)
    large = filled(1, 180)
    assert spillway.regions()["cold"]["host_bytes"] >= cold.nbytes
    del large
    with spillway.resident("cold"):
        outcome.damaged += int((cold.cpu() != 9).any())


def an_idle_phase_evicts_what_may_go(outcome: Outcome) -> None:
    configure("evict_above:100MiB,evict_below:60MiB")
    with spillway.region("cold", evictable=1):
        cold = filled(9, 60)
    hot = filled(1, 50)
    assert spillway.phase("busy") == 0
    assert spillway.phase("idle") >= cold.nbytes
    assert spillway.regions()["cold"]["host_bytes"] >= cold.nbytes
    assert spillway.phase("idle") == 0
    with spillway.resident("cold"):
        outcome.damaged += int((cold.cpu() != 9).any())
    outcome.damaged += int((hot.cpu() != 1).any())
    refused("use idle or busy", spillway.phase, "lunch")
    refused("5 is no phase", spillway.phase, 5)


def what_is_packed_comes_back(outcome: Outcome) -> None:
    with tempfile.TemporaryDirectory() as folder:
        configure(f"spill_dir:{folder},spill_ram_backed:on,spill_daily_writes:1GiB")
        for codec in ("lz4", "zstd"):
            before = spillway.tier_stats()["disk_saved_bytes"]
            with spillway.region(codec, codec=codec):
                tensor = filled(3, 20)
            spillway.evict(codec, "disk")
            spillway.restore(codec)
            outcome.damaged += int((tensor.cpu() != 3).any())
            assert spillway.tier_stats()["disk_saved_bytes"] > before
        refused("allowed: none, lz4, zstd", spillway.region("a", codec="gzip").__enter__)


def mistakes_are_one_sentence(outcome: Outcome) -> None:
    refused("has no region 'none'; it has: none", spillway.evict, "none")
    refused("letters, digits", spillway.region("two words").__enter__)
    refused("'floppy' is not known; allowed: host, disk, nowhere", spillway.evict, "a", "floppy")
    refused("evictable=-1 is not allowed", spillway.region("a", evictable=-1).__enter__)
    refused("no CUDA device", spillway.restore, "a", "cpu")
    refused("there is no device cuda:7", spillway.restore, "a", 7)
    refused("5 is no tag", spillway.evict, 5)
    with spillway.region("a"):
        tensor = filled(1)
        refused("is open: end it", spillway.evict, "a")
    refused("on the device already", spillway.restore, "a")
    refused("not pinned", spillway.unpin, "a")
    refused("spill_dir", spillway.evict, "a", "disk")
    spillway.evict("a")
    refused("restore it first", spillway.region("a").__enter__)
    refused("restore it first", spillway.pin, "a")
    spillway.restore("a")
    outcome.damaged += int((tensor.cpu() != 1).any())
    # None of this left a region open.
    before = spillway.regions()["a"]["device_bytes"]
    kept = filled(1, 60)
    assert spillway.regions()["a"]["device_bytes"] == before
    del kept


def a_directory_that_nothing_can_be_written_to(outcome: Outcome) -> None:
    configure("spill_dir:/proc/self,pinned_limit:1MiB")
    with spillway.region("a"):
        tensor = filled(1)
    for to in ("disk", "host"):
        refused("no file can be made in the spill directory /proc/self", spillway.evict, "a", to)
    outcome.damaged += int((tensor.cpu() != 1).any())


def limits_beyond_the_machine(outcome: Outcome) -> None:
    with spillway.region("a"):
        tensor = filled(1)
    for limit in ("pinned_limit", "overflow_limit", "spill_limit", "limit"):
        before = option(limit)
        refused(f"spw_conf_set: {limit}: 1024000GiB is more than", configure, f"{limit}:1000TiB")
        assert option(limit) == before
    for to in ("host", "disk"):
        spillway.evict("a", to)
        refused("not on the device already", spillway.evict, "a", to)
        spillway.restore("a")
    outcome.damaged += int((tensor.cpu() != 1).any())


def what_is_gone_is_not_brought_back(outcome: Outcome) -> None:
    for to in ("host", "disk", "nowhere"):
        with spillway.region("a"):
            tensor = filled(1)
        spillway.evict("a", to)
        # Only the region is left to bring back.
        del tensor
        spillway.restore("a")
        assert allocated() == 0 and spillway.regions()["a"]["host_bytes"] == 0
        spillway.release("a")
        refused("has no region 'a'", spillway.restore, "a")


def spill_file() -> int:
    """The descriptor of the file without a name that regions go to."""
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        if os.path.lexists(path) and os.readlink(path).startswith(option("spill_dir")):
            return int(number)
    raise AssertionError("no spill file is open")


def bytes_on_disk() -> int:
    return os.fstat(spill_file()).st_blocks * 512


def damage(offset: int) -> None:
    """A page of what was written there."""
    with mmap.mmap(-1, mmap.PAGESIZE) as wrong:  # aligned, as O_DIRECT may ask for
        wrong.write(b"x" * mmap.PAGESIZE)
        assert os.pwrite(spill_file(), wrong, offset) == mmap.PAGESIZE


def what_the_disk_lost_is_let_go(outcome: Outcome) -> None:
    with spillway.region("a"):
        tensors = [filled(value, 24) for value in range(1, 4)]
    spillway.evict("a", "disk")
    damage(2 * MIB)
    for function in (spillway.restore, spillway.restore, spillway.release):
        refused(f"from {tensors[0].data_ptr():#x} to", function, "a")
    assert 0 < spillway.regions()["a"]["lost_bytes"] <= tensors[0].nbytes
    del tensors[0]
    spillway.restore("a")
    outcome.damaged += sum(int((tensor.cpu() != value).any()) for value, tensor in enumerate(tensors, 2))
    row = spillway.regions()["a"]
    assert row["lost_bytes"] == row["disk_bytes"] == 0
    spillway.release("a")


def what_a_graph_may_keep_is_not_let_go(outcome: Outcome) -> None:
    source = filled(1)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=spillway.region_pool("graph")):
        made = source.clone()
    graph.replay()
    torch.cuda.synchronize()
    spillway.evict("graph", "disk")
    damage(8192)
    del made
    refused("free what lies there", spillway.restore, "graph")
    graph.reset()
    spillway.restore("graph")
    outcome.damaged += int((source.cpu() != 1).any())


def what_is_away_is_released_there(outcome: Outcome) -> None:
    with spillway.region("a"):
        tensors = [filled(value, 24) for value in range(2)]
    spillway.evict("a", "disk")
    damage(24 * MIB)
    refused("free what lies there", spillway.restore, "a")
    spillway.release("a", bring_back=False)
    assert spillway.regions() == {} and allocated() == 0
    # What is gone leaves the disk, and the tag serves again.
    tensors.clear()
    torch.cuda.empty_cache()
    assert bytes_on_disk() < MIB
    with spillway.region("a"):
        again = filled(3)
    spillway.evict("a", "disk")
    spillway.restore("a")
    outcome.damaged += int((again.cpu() != 3).any())


PROGRAMS: list[Program] = [
    functools.partial(tensors_come_back, to="host"),
    on_disk(functools.partial(tensors_come_back, to="disk")),
    graph_over_a_region_stays_valid,
    graph_in_a_region_keeps_its_content,
    what_must_stay_stays,
    functools.partial(what_is_released_lives_on, to="host"),
    on_disk(functools.partial(what_is_released_lives_on, to="disk")),
    only_this_threads_memory_is_taken,
    short_of_memory_evicts_what_may_go,
    an_idle_phase_evicts_what_may_go,
    what_is_packed_comes_back,
    a_directory_that_nothing_can_be_written_to,
    on_disk(limits_beyond_the_machine),
    on_disk(what_is_gone_is_not_brought_back),
    on_disk(what_the_disk_lost_is_let_go),
    on_disk(what_a_graph_may_keep_is_not_let_go),
    on_disk(what_is_away_is_released_there),
    mistakes_are_one_sentence,
]

OnEverySeed = every_seed(PROGRAMS)


class OneDirectory(unittest.TestCase):
    TOUCH = "" if ON_GPU else "import spillway.sim; spillway.sim.touch_operands()"
    PROGRAM = f"""
import sys, torch, spillway
spillway.install("plain")
{TOUCH}
value = int(sys.argv[1])
with spillway.region("a"):
    tensor = torch.full((1 << 20,), value, dtype=torch.int32, device="cuda")
spillway.evict("a", "disk")
print("away", flush=True)
sys.stdin.readline()
spillway.restore("a")
print(int((tensor.cpu() != value).sum()), flush=True)
"""

    def test_is_used_by_two_processes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "SPILLWAY_CONF": f"spill_dir:{folder},spill_ram_backed:on"}
            running = [
                subprocess.Popen(
                    [sys.executable, "-c", self.PROGRAM, str(value)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for value in (1, 2)
            ]
            away = [process.stdout.readline() if process.stdout else "" for process in running]
            ends = [process.communicate("\n")[0] for process in running]
            self.assertEqual((away, ends), (["away\n"] * 2, ["0\n"] * 2))
            self.assertEqual(os.listdir(folder), [])


class WithoutSpillway(unittest.TestCase):
    def test_install_is_asked_for(self) -> None:
        with self.assertRaisesRegex(
            spillway.SpillwayError, r"evict\(\) needs Spillway's memory: call spillway.install"
        ):
            spillway.evict("a")

    def test_disabled_does_nothing(self) -> None:
        os.environ["SPILLWAY_DISABLE"] = "1"
        self.addCleanup(os.environ.pop, "SPILLWAY_DISABLE")
        with spillway.region("a"), spillway.resident("a"):
            spillway.evict("a")
        spillway.restore("a")
        self.assertEqual((spillway.regions(), spillway.tier_stats()), ({}, {}))


if __name__ == "__main__":
    unittest.main()
