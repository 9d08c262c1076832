"""The integration without a compiler: libspillway's hooks, and functions in Python for what has no hook.

Everything of torch.cuda.memory that is about counters, segments and limits is answered. What PyTorch's pluggable
allocator lacks beyond that, or ignores without a word, is refused in one sentence.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from .. import _counters
from .._errors import SpillwayError, SpillwayWarning
from .._library import check, get_limit, library
from . import first_use, hooks
from .releases import later_stats, use_nccl_without_hook

# Functions of torch._C, and what they are for.
REFUSED = {
    "_cuda_attach_out_of_memory_observer": "an observer of out-of-memory errors",
    "_cuda_getCheckpointState": "a checkpoint of a graph's pool (torch.compile with mode='reduce-overhead')",
    "_cuda_setCheckpointPoolState": "a checkpoint of a graph's pool (torch.compile with mode='reduce-overhead')",
    "_cuda_checkPoolLiveAllocations": "a check of a graph's pool (torch.compile with mode='reduce-overhead')",
    "_activate_gpu_trace": "a trace of allocations (the sanitizer of torch.cuda)",
    # Releases after 2.11 have these.
    "_cuda_annotateMemory": "an annotation of a tensor's memory",
    "_cuda_allocationTraceback": "the stack of an allocation",
}
BENCHMARK = "torch.backends.cudnn.benchmark"
NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"
UNLIMITED = (1 << 64) - 1


def change_allocator(torch: Any) -> None:
    """Errors: SpillwayError, and PyTorch is as it was."""
    if torch.backends.cudnn.benchmark:
        refuse(BENCHMARK)
    if NO_CACHING in os.environ:  # whatever its value, as PyTorch has it
        refuse(NO_CACHING)
    allocator = hooks.pluggable(torch, hooks.ALL)
    try:
        torch._C._cuda_changeCurrentAllocator(allocator)
    except RuntimeError as problem:
        first_line = str(problem).splitlines()[0]
        raise SpillwayError(f"PyTorch refuses another allocator ({first_line}): {first_use.describe()}") from None


def answer(torch: Any) -> None:
    """What has no hook."""
    hooks.throw_pytorchs_own(torch)
    use_nccl_without_hook()
    replace_counters(torch)
    replace_snapshot(torch)
    replace_fraction(torch)
    replace_what_is_refused(torch)
    replace_profiler(torch.autograd.profiler.profile)


def refuse(what: str) -> NoReturn:
    raise SpillwayError(f"{what} is not served by Spillway's plain mode: use spillway.install(mode='full')")


def refusing(what: str) -> Callable[..., NoReturn]:
    def refused(*_: object, **__: object) -> NoReturn:
        refuse(what)

    return refused


def replace_counters(torch: Any) -> None:
    native = torch._C
    native._cuda_memoryStats = lambda device: {**_counters.stats(device), **later_stats(torch, device)}
    native._cuda_resetPeakMemoryStats = lambda device: check(library().spw_stats_reset_peaks(device))
    native._cuda_resetAccumulatedMemoryStats = lambda device: check(library().spw_stats_reset_accumulated(device))
    # torch.accelerator asks the allocator that PyTorch registered for the device type, and that is its own.
    native._accelerator_isAllocatorInitialized = torch.cuda.is_initialized
    native._accelerator_emptyCache = native._cuda_emptyCache
    native._accelerator_getDeviceStats = native._cuda_memoryStats
    native._accelerator_resetPeakStats = native._cuda_resetPeakMemoryStats
    native._accelerator_resetAccumulatedStats = native._cuda_resetAccumulatedMemoryStats


def replace_snapshot(torch: Any) -> None:
    def snapshot(pool: tuple[int, ...] | None = None) -> dict[str, Any]:
        chosen = (0, 0) if pool is None else tuple(pool[:2])
        devices = range(torch.cuda.device_count())
        rows = [row for device in devices for row in _counters.segments(device, lambda id: chosen in ((0, 0), id))]
        return {
            "segments": sorted(rows, key=lambda row: row["address"]),
            "device_traces": [[] for _ in devices],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": _counters.settings(),
                "max_split_size": -1,
                "garbage_collection_threshold": 0.0,
                "expandable_segments": False,
                "pinned_num_register_threads": 1,
                "release_lock_on_cudamalloc": False,
                "pinned_use_cuda_host_register": False,
                "graph_capture_record_stream_reuse": False,
                "roundup_power2_divisions": {},
            },
            "external_annotations": [],
        }

    def record_history(enabled: str | bool | None, *_: object) -> None:
        if enabled:
            refuse("the history of memory")

    torch._C._cuda_memorySnapshot = snapshot
    torch._C._cuda_isHistoryEnabled = lambda: False
    torch._C._cuda_record_memory_history = record_history
    torch._C._cuda_record_memory_history_legacy = record_history


def replace_fraction(torch: Any) -> None:
    fractions: dict[int, float] = {}

    def total_bytes(device: int) -> int:
        torch.cuda.synchronize(device)  # PyTorch makes no context before the first block
        total = ctypes.c_uint64()
        check(library().spw_memory_info(device, None, ctypes.byref(total)))
        return total.value

    def limit_of(fraction: float, total: int) -> int:
        return UNLIMITED if fraction >= 1 else int(fraction * total)

    def set_fraction(fraction: float, device: int) -> None:
        check(library().spw_set_limit(device, limit_of(fraction, total_bytes(device))))
        fractions[device] = fraction

    def get_fraction(device: int) -> float:
        total = total_bytes(device)
        limit, chosen = get_limit(device), fractions.get(device, 1.0)
        return chosen if limit == limit_of(chosen, total) else min(1.0, round(limit / total, 6))

    torch._C._cuda_setMemoryFraction = set_fraction
    torch._C._cuda_getMemoryFraction = get_fraction


def replace_what_is_refused(torch: Any) -> None:
    for name, what in REFUSED.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, refusing(what))
    torch.cuda.memory.MemPool.__init__ = refusing("torch.cuda.MemPool")
    torch.UntypedStorage._share_cuda_ = refusing("CUDA memory shared with another process")
    torch.UntypedStorage._new_shared_cuda = refusing("CUDA memory shared by another process")

    native = torch._C

    # These take a value that asks for nothing.
    def only(function: Any, allowed: object, what: str) -> Callable[[Any], Any]:
        def call(value: Any) -> Any:
            return function(value) if value == allowed else refuse(what)

        return call

    native._set_cudnn_benchmark = only(native._set_cudnn_benchmark, False, BENCHMARK)
    vars(type(torch.backends.cudnn))["benchmark"].setter = native._set_cudnn_benchmark
    native._cuda_cudaCachingAllocator_enable = only(
        native._cuda_cudaCachingAllocator_enable, True, "torch.cuda.caching_allocator_enable(False)"
    )
    if hasattr(native, "_cuda_setMemoryMetadata"):  # since 2.10
        native._cuda_setMemoryMetadata = only(native._cuda_setMemoryMetadata, "", "metadata of allocations")


def replace_profiler(profile: Any) -> None:
    """Its memory of the host is as ever, so it is not refused."""
    begin = profile.__init__

    @functools.wraps(begin)
    def warn_and_begin(self: Any, *args: Any, **options: Any) -> None:
        if options.get("profile_memory"):
            warnings.warn(
                "profile_memory shows no CUDA memory in Spillway's plain mode: use spillway.install(mode='full')",
                SpillwayWarning,
                stacklevel=2,
            )
        begin(self, *args, **options)

    profile.__init__ = warn_and_begin
