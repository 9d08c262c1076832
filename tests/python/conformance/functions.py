"""Every public function of torch.cuda.memory, and those about memory of torch.accelerator."""

from __future__ import annotations

import importlib
import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cases import CAPACITY_BYTES, NotApplicableError, Register, expect, function, mebibytes
from simulated import MIB

torch: Any = importlib.import_module("torch")
memory: Any = torch.cuda.memory

# Not in __all__, and yet documented: they are how memory is looked into.
UNDERSCORED = (
    "_record_memory_history",
    "_snapshot",
    "_dump_snapshot",
    "_set_memory_metadata",
    "_get_memory_metadata",
    "_save_segment_usage",
    "_save_memory_usage",
    "_set_allocator_settings",
)


def wanted() -> list[str]:
    """What this release of PyTorch has, by which it is judged."""
    accelerator: Any = importlib.import_module("torch.accelerator.memory")
    return [
        *(f"torch.cuda.memory.{name}" for name in [*memory.__all__, *UNDERSCORED] if hasattr(memory, name)),
        *(f"torch.accelerator.{name}" for name in accelerator.__all__),
    ]


def cuda(*names: str) -> Register:
    return function(*(f"torch.cuda.memory.{name}" for name in names))


def accelerator(*names: str) -> Register:
    return function(*(f"torch.accelerator.{name}" for name in names))


# ---- Blocks


@cuda("caching_allocator_alloc", "caching_allocator_delete")
def blocks_of_the_caller() -> None:
    kept = mebibytes(1)
    address = memory.caching_allocator_alloc(MIB)
    expect(abs(address - kept.data_ptr()) >= MIB, "the block overlaps a tensor")
    memory.caching_allocator_delete(address)
    expect(memory.caching_allocator_alloc(MIB) == address, "the block is not free after its end")


@cuda("caching_allocator_enable")
def no_caching() -> None:
    torch.cuda.init()  # before that, the call is ignored
    memory.caching_allocator_enable(False)
    mebibytes(32)
    expect(held_bytes() == 0, "without caching, a freed block stays reserved")
    memory.caching_allocator_enable(True)
    mebibytes(32)
    expect(held_bytes() > 0, "with caching, a freed block does not stay reserved")


@cuda("caching_allocator_disabled")
def no_caching_for_a_while() -> None:
    torch.cuda.init()
    with memory.caching_allocator_disabled():
        mebibytes(32)
        expect(held_bytes() == 0, "without caching, a freed block stays reserved")
    mebibytes(32)
    expect(held_bytes() > 0, "afterwards, a freed block does not stay reserved")


def held_bytes() -> int:
    free, total = memory.mem_get_info()
    return int(total - free)


def check_emptied(empty: Any) -> None:
    mebibytes(64)
    if held_bytes() == 0:
        raise NotApplicableError("nothing is cached")
    empty()
    expect(held_bytes() == 0, f"{held_bytes()} bytes stay")


@cuda("empty_cache")
def empty_cache() -> None:
    check_emptied(memory.empty_cache)


@accelerator("empty_host_cache")
def accelerator_empty_host_cache() -> None:
    mebibytes(1)  # it does nothing before the allocator is in use
    torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    expect(memory.host_memory_stats()["allocated_bytes.current"] >= MIB, "a freed block of pinned memory is not cached")
    torch.accelerator.empty_host_cache()
    expect(memory.host_memory_stats()["allocated_bytes.current"] == 0, "pinned memory stays")


@accelerator("empty_cache")
def accelerator_empty_cache() -> None:
    check_emptied(torch.accelerator.empty_cache)


# ---- Limits


@cuda("set_per_process_memory_fraction")
def set_fraction() -> None:
    memory.set_per_process_memory_fraction(0.25)
    mebibytes(128)
    try:
        mebibytes(512)
    except torch.OutOfMemoryError:
        return
    raise AssertionError("more than the fraction was given")


@cuda("get_per_process_memory_fraction")
def get_fraction() -> None:
    expect(memory.get_per_process_memory_fraction() == 1, "it is not 1 at first")
    memory.set_per_process_memory_fraction(0.25)
    expect(memory.get_per_process_memory_fraction() == 0.25, "it is not what was set")


@cuda("mem_get_info")
def mem_get_info() -> None:
    free, total = memory.mem_get_info()
    kept = mebibytes(64)
    expect(total == CAPACITY_BYTES and memory.mem_get_info()[0] <= free - 64 * MIB, "a block leaves no less free")
    del kept


@accelerator("get_memory_info")
def accelerator_info() -> None:
    mebibytes(1)
    expect(torch.accelerator.get_memory_info() == memory.mem_get_info(), "it differs from mem_get_info()")


@cuda("list_gpu_processes")
def list_gpu_processes() -> None:
    if "pynvml" in memory.list_gpu_processes():
        raise NotApplicableError("pynvml answers it, not the allocator")


# ---- Counters


@contextmanager
def three_mebibytes(read: Any, most: Any) -> Iterator[None]:
    before = read()
    gone = mebibytes(3)
    expect(read() - before >= 3 * MIB, f"{read() - before} bytes after 3 MiB were allocated")
    del gone
    yield
    expect(most() >= before + 3 * MIB, "the peak is lower than what there was")


@cuda("memory_allocated", "max_memory_allocated")
def allocated() -> None:
    with three_mebibytes(memory.memory_allocated, memory.max_memory_allocated):
        expect(memory.memory_allocated() == 0, "a freed block is counted")


@accelerator("memory_allocated", "max_memory_allocated")
def accelerator_allocated() -> None:
    with three_mebibytes(torch.accelerator.memory_allocated, torch.accelerator.max_memory_allocated):
        expect(torch.accelerator.memory_allocated() == 0, "a freed block is counted")


@cuda("memory_reserved", "max_memory_reserved")
def reserved() -> None:
    with three_mebibytes(memory.memory_reserved, memory.max_memory_reserved):
        expect(memory.memory_reserved() > 0, "what is cached is not counted")


@cuda("memory_cached", "max_memory_cached")
def cached() -> None:
    with three_mebibytes(memory.memory_cached, memory.max_memory_cached):
        expect(memory.memory_cached() == memory.memory_reserved(), "it differs from memory_reserved()")


@accelerator("memory_reserved", "max_memory_reserved")
def accelerator_reserved() -> None:
    with three_mebibytes(torch.accelerator.memory_reserved, torch.accelerator.max_memory_reserved):
        expect(torch.accelerator.memory_reserved() == memory.memory_reserved(), "it differs from torch.cuda's")


COUNTERS = "allocation active inactive_split segment allocated_bytes active_bytes requested_bytes reserved_bytes"


def check_counters(stats: dict[str, Any]) -> None:
    for name in COUNTERS.split():
        for kind in ("current", "peak", "allocated", "freed"):
            expect(f"{name}.all.{kind}" in stats, f"{name}.all.{kind} is missing")
    now = {name: stats[f"{name}.all.current"] for name in COUNTERS.split()}
    expect(now["allocation"] == 1 and now["requested_bytes"] == 3 * MIB, f"one block of 3 MiB is counted as {now}")
    expect(now["allocated_bytes"] <= now["active_bytes"] <= now["reserved_bytes"], f"the bytes do not add up: {now}")


@cuda("memory_stats")
def memory_stats() -> None:
    kept = mebibytes(3)
    check_counters(memory.memory_stats())
    del kept


@accelerator("memory_stats")
def accelerator_stats() -> None:
    kept = mebibytes(3)
    check_counters(torch.accelerator.memory_stats())
    del kept


@cuda("memory_stats_as_nested_dict")
def nested_stats() -> None:
    kept = mebibytes(3)
    nested = memory.memory_stats_as_nested_dict()
    expect(nested["requested_bytes"]["all"]["current"] == 3 * MIB, f"3 MiB are counted as {nested['requested_bytes']}")
    del kept


@cuda("memory_summary")
def summary() -> None:
    kept = mebibytes(3)
    for abbreviated in (False, True):
        text = memory.memory_summary(abbreviated=abbreviated)
        expect("Allocated memory" in text and "3072 KiB" in text, "the block is not in it")
    del kept


def check_peaks_reset(reset: Any) -> None:
    mebibytes(64)
    kept = mebibytes(3)
    reset()
    expect(memory.max_memory_allocated() == 3 * MIB, f"the peak is {memory.max_memory_allocated()} after the reset")
    del kept


@cuda("reset_peak_memory_stats")
def reset_peaks() -> None:
    check_peaks_reset(memory.reset_peak_memory_stats)


@cuda("reset_max_memory_allocated")
def reset_max_allocated() -> None:
    check_peaks_reset(memory.reset_max_memory_allocated)


@cuda("reset_max_memory_cached")
def reset_max_cached() -> None:
    check_peaks_reset(memory.reset_max_memory_cached)


@accelerator("reset_peak_memory_stats")
def accelerator_reset_peaks() -> None:
    check_peaks_reset(torch.accelerator.reset_peak_memory_stats)


def check_accumulated_reset(reset: Any) -> None:
    mebibytes(3)
    expect(memory.memory_stats()["allocation.all.allocated"] == 1, "the block was not counted")
    reset()
    expect(memory.memory_stats()["allocation.all.allocated"] == 0, "the count is not 0 after the reset")


@cuda("reset_accumulated_memory_stats")
def reset_accumulated() -> None:
    check_accumulated_reset(memory.reset_accumulated_memory_stats)


@accelerator("reset_accumulated_memory_stats")
def accelerator_reset_accumulated() -> None:
    check_accumulated_reset(torch.accelerator.reset_accumulated_memory_stats)


# ---- Pinned host memory


def pinned() -> Any:
    torch.cuda.init()  # before that, PyTorch answers nothing
    return torch.empty(MIB, dtype=torch.uint8, pin_memory=True)


@cuda("host_memory_stats", "host_memory_stats_as_nested_dict")
def host_stats() -> None:
    kept = pinned()
    expect(memory.host_memory_stats()["active_bytes.current"] >= MIB, "pinned memory is not counted")
    expect(memory.host_memory_stats_as_nested_dict()["active_bytes"]["current"] >= MIB, "not counted when nested")
    del kept


@cuda("reset_peak_host_memory_stats")
def reset_host_peaks() -> None:
    gone = pinned()
    del gone
    torch.cuda.synchronize()
    pinned()
    memory.reset_peak_host_memory_stats()
    stats = memory.host_memory_stats()
    expect(stats["allocated_bytes.peak"] == stats["allocated_bytes.current"], "the peak is not the current")


@cuda("reset_accumulated_host_memory_stats")
def reset_host_accumulated() -> None:
    pinned()
    memory.reset_accumulated_host_memory_stats()
    expect(memory.host_memory_stats()["num_host_alloc"] == 0, "the count is not 0 after the reset")


# ---- Looking into memory


def states(segments: list[dict[str, Any]], address: int) -> list[str]:
    return [b["state"] for segment in segments for b in segment["blocks"] if b["address"] == address]


def stack(segments: list[dict[str, Any]], address: int) -> list[str]:
    blocks = [block for segment in segments for block in segment["blocks"] if block["address"] == address]
    return [frame["name"] for block in blocks for frame in block["frames"]]


@cuda("memory_snapshot")
def snapshot_of_segments() -> None:
    kept = mebibytes(3)
    segments = memory.memory_snapshot()
    expect(states(segments, kept.data_ptr()) == ["active_allocated"], "the block is not in it")
    total = sum(segment["total_size"] for segment in segments)
    expect(total == memory.memory_reserved(), f"segments of {total} bytes, {memory.memory_reserved()} are reserved")


@cuda("_snapshot")
def snapshot() -> None:
    kept = mebibytes(3)
    taken = memory._snapshot()
    expect(states(taken["segments"], kept.data_ptr()) == ["active_allocated"], "the block is not in it")
    expect({"device_traces", "allocator_settings"} <= taken.keys(), f"it has only {sorted(taken)}")


@cuda("_record_memory_history")
def history() -> None:
    memory._record_memory_history(max_entries=1000)
    kept = mebibytes(3)
    taken = memory._snapshot()
    events = [event["action"] for event in taken["device_traces"][0] if event["addr"] == kept.data_ptr()]
    expect("alloc" in events, "the allocation is not in the trace")
    expect("mebibytes" in stack(taken["segments"], kept.data_ptr()), "the block has no stack")


@cuda("_dump_snapshot")
def dump() -> None:
    kept = mebibytes(3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        memory._dump_snapshot(str(path))
        snapshot = pickle.loads(path.read_bytes())
    expect(states(snapshot["segments"], kept.data_ptr()) == ["active_allocated"], "the block is not in it")


@cuda("_save_segment_usage", "_save_memory_usage")
def flame_graphs() -> None:
    raise NotApplicableError("it downloads a program")


@cuda("_set_memory_metadata", "_get_memory_metadata")
def metadata() -> None:
    memory._record_memory_history(max_entries=1000)
    memory._set_memory_metadata("phase one")
    expect(memory._get_memory_metadata() == "phase one", "it is not what was set")
    kept = mebibytes(3)
    events = memory._snapshot()["device_traces"][0]
    expect("phase one" in [event.get("user_metadata") for event in events], "it is not in the trace")
    del kept


@cuda("_set_allocator_settings")
def settings() -> None:
    memory._set_allocator_settings("max_split_size_mb:64")
    mebibytes(128)


@cuda("get_allocator_backend")
def backend() -> None:
    expect(memory.get_allocator_backend() in ("native", "pluggable", "spillway"), memory.get_allocator_backend())


# ---- Other allocators and pools


def allocator_of_a_file() -> Any:
    return memory.CUDAPluggableAllocator(os.environ["SPILLWAY_LIBRARY"], "spw_torch_alloc", "spw_torch_free")


@cuda("CUDAPluggableAllocator")
def pluggable_allocator() -> None:
    expect(allocator_of_a_file().allocator() is not None, "it is none")


@cuda("change_current_allocator")
def change_allocator() -> None:
    if memory.get_allocator_backend() != "native":
        raise NotApplicableError("by it the allocator became this one")
    memory.change_current_allocator(allocator_of_a_file())
    mebibytes(1)
    expect(memory.get_allocator_backend() == "pluggable", "the allocator is the old one")


@cuda("MemPool", "use_mem_pool")
def pool() -> None:
    mine = memory.MemPool()
    with memory.use_mem_pool(mine):
        inside = mebibytes(3)
    outside = mebibytes(3)
    segments = mine.snapshot()
    expect(states(segments, inside.data_ptr()) == ["active_allocated"], "a block of the pool is not in it")
    expect(states(segments, outside.data_ptr()) == [], "another block is in it")
    address = inside.data_ptr()
    del inside
    others = [mebibytes(3) for _ in range(8)]
    expect(address not in [other.data_ptr() for other in others], "a block of the pool serves others")
    expect(mine.use_count() == 1, f"the pool has {mine.use_count()} users")
