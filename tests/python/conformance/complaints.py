"""What users of PyTorch's allocators complain of in public, each as the program that hurts.

A case is named by where the complaint is to be found on GitHub.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickletools
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from cases import CAPACITY_BYTES, NotApplicableError, complaint, driver, expect, mebibytes, used_on
from functions import stack
from simulated import MIB

torch: Any = importlib.import_module("torch")
memory: Any = torch.cuda.memory

MOST = CAPACITY_BYTES // MIB
RUN_AHEAD = "completion:run-ahead"  # nothing completes before the host waits


def why_out_of_memory() -> str:
    """What the error says where half of the memory is held by single blocks of 1 MiB."""
    kept = comb(live_mib=1, hole_mib=19)
    try:
        mebibytes(2 * MOST)
    except RuntimeError as problem:
        del kept
        return str(problem)
    raise AssertionError("twice the device's memory was given")


def comb(live_mib: int, hole_mib: int) -> list[Any]:
    """Fills most of the device, then frees every other block."""
    kept, gone = [], []
    for _ in range(3 * MOST // 4 // (live_mib + hole_mib)):
        kept.append(mebibytes(live_mib))
        gone.append(mebibytes(hole_mib))
    return kept


# ---- What is answered


@complaint("pytorch#98481", "counters under another allocator")
def counters() -> None:
    kept = mebibytes(3)
    expect(memory.memory_stats()["active_bytes.all.current"] >= 3 * MIB, "a block is not counted")
    del kept


@complaint("rmm#1362", "torch.backends.cudnn.benchmark, for which cuDNN asks how much memory is free")
def cudnn_benchmark() -> None:
    torch.backends.cudnn.benchmark = True
    raise NotApplicableError("cuDNN is not simulated")


@complaint("pytorch#133281", "peaks and their reset under another allocator")
def peaks() -> None:
    mebibytes(3)
    memory.reset_peak_memory_stats()
    expect(memory.max_memory_allocated() == 0, "the peak stays")


@complaint("pytorch#133280", "torch.OutOfMemoryError, not a RuntimeError")
def type_of_out_of_memory() -> None:
    try:
        mebibytes(2 * MOST)
    except torch.OutOfMemoryError:
        return
    except RuntimeError as problem:
        raise AssertionError(f"{type(problem).__name__}: {problem}") from None
    raise AssertionError("twice the device's memory was given")


@complaint("pytorch#159892", "requests of no bytes")
def size_zero() -> None:
    empty = torch.empty(0, device="cuda")
    expect(empty.data_ptr() == 0, "they have an address")
    empty.record_stream(torch.cuda.Stream())
    memory.caching_allocator_delete(memory.caching_allocator_alloc(0))


@complaint("pytorch#142127", "no address given twice")
def unique_addresses() -> None:
    blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in range(1, 4000, 13)]
    ranges = sorted((block.data_ptr(), block.data_ptr() + block.numel()) for block in blocks)
    overlaps = [one for one, other in zip(ranges, ranges[1:], strict=False) if one[1] > other[0]]
    expect(not overlaps, f"{len(overlaps)} blocks overlap")


@complaint("pytorch#115336", "segments and stacks under another allocator")
def segments_and_stacks() -> None:
    memory._record_memory_history(max_entries=1000)
    kept = mebibytes(3)
    expect("mebibytes" in stack(memory.memory_snapshot(), kept.data_ptr()), "the block has no stack")


@complaint("pytorch#163257", "a check of what lives in a graph's pool (torch.compile asks)")
def live_blocks_of_a_pool() -> None:
    source = mebibytes(3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = source + 1
    live = {kept.untyped_storage().data_ptr()}
    expect(torch._C._cuda_checkPoolLiveAllocations(0, graph.pool(), live), "the one live block is not found")
    expect(not torch._C._cuda_checkPoolLiveAllocations(0, graph.pool(), set()), "a live block is not noticed")


@complaint("apex#1923, vllm#23477", "hooks that outlive garbage collection")
def hooks_stay() -> None:
    for _ in range(3):
        gc.collect()
        mebibytes(3)
    memory.empty_cache()


@complaint("pytorch#115234", "a snapshot without whole numbers that its viewer cannot read")
def readable_snapshot() -> None:
    kept = mebibytes(3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        memory._dump_snapshot(str(path))
        numbers = [argument for _, argument, _ in pickletools.genops(path.read_bytes()) if isinstance(argument, int)]
    expect(max(numbers) < 1 << 63, f"{max(numbers)} takes more than 8 bytes")
    del kept


# ---- Pools


@complaint("pytorch#145168", "memory of a pool that is gone goes back")
def pool_that_is_gone() -> None:
    pool = memory.MemPool()
    with memory.use_mem_pool(pool):
        mebibytes(64)
    del pool
    memory.empty_cache()
    expect(memory.memory_reserved() == 0, f"{memory.memory_reserved()} bytes stay")


ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


def pool_of_a_foreign_allocator() -> None:
    """What the foreign allocator gave comes back to it."""
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda[:2]}")
    given: list[int] = []
    returned: list[int] = []

    def allocate(size: int, *_: object) -> int:
        pointer = ctypes.c_void_p()
        runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
        given.append(pointer.value or 0)
        return given[-1]

    def free(pointer: int, *_: object) -> None:
        returned.append(pointer)
        runtime.cudaFree(ctypes.c_void_p(pointer))

    hooks = ALLOC(allocate), FREE(free)
    addresses = [ctypes.cast(hook, ctypes.c_void_p).value for hook in hooks]
    foreign = torch._C._cuda_customAllocator(*addresses)
    pool = memory.MemPool(foreign)
    with memory.use_mem_pool(pool):
        inside = mebibytes(3)
    expect(given, "the foreign allocator was not asked")
    del inside, pool
    memory.empty_cache()
    expect(returned == given, f"{len(given)} blocks were given, {len(returned)} came back")


@complaint("pytorch#146431", "a foreign allocator's memory goes back to it")
def foreign_memory() -> None:
    pool_of_a_foreign_allocator()


@complaint("pytorch#147851, vllm#40812", "the same with expandable segments on")
def foreign_memory_beside_expandable_segments() -> None:
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    pool_of_a_foreign_allocator()


@complaint("pytorch#159674", "a pool takes what others have cached before it is out of memory")
def pool_takes_cached_memory() -> None:
    pool = memory.MemPool()
    mebibytes(3 * MOST // 4)
    with memory.use_mem_pool(pool):
        mebibytes(MOST // 2)


@complaint("pytorch PR#151487", "a pool's free memory serves others before they are out of memory (use_on_oom)")
def pool_gives_on_out_of_memory() -> None:
    pool = memory.MemPool(use_on_oom=True)
    with memory.use_mem_pool(pool):
        mebibytes(3 * MOST // 4)
    mebibytes(MOST // 2)


# ---- Fragmentation


@complaint("pytorch#31252", "free memory in pieces serves one large request")
def pieces_serve_a_large_request() -> None:
    kept = comb(live_mib=8, hole_mib=8)
    mebibytes(MOST // 2)
    del kept


@complaint("pytorch#152135", "the same with expandable segments on")
def pieces_of_expandable_segments() -> None:
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    pieces_serve_a_large_request()


@complaint("pytorch#35901, torchrec#4584", "few small live blocks do not hold large segments")
def small_blocks_hold_no_segments() -> None:
    kept = comb(live_mib=2, hole_mib=18)
    mebibytes(3 * MOST // 4)
    del kept


@complaint("pytorch#29554", "the error says how far memory is in pieces")
def error_measures_fragmentation() -> None:
    text = why_out_of_memory()
    expect(re.search(r"(fragment|largest)[^.]*\d", text), f"it says: {text.splitlines()[0]}")


@complaint("pytorch#173049", "the error does not advise what is on already")
def error_advises_nothing_that_is_on() -> None:
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    expect("expandable_segments:True" not in why_out_of_memory(), "it advises expandable_segments:True")


@complaint(
    "pytorch#106200, #118357", "a request beyond the device is served slowly, not refused", setting="overflow:host"
)
def beyond_the_device() -> None:
    mebibytes(2 * MOST)


@complaint("pytorch#193195", "a retry that succeeds says nothing")
def silent_retries() -> None:
    with tempfile.TemporaryFile() as said:
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        for size in (3 * MOST // 4, MOST // 2, 5 * MOST // 8):
            mebibytes(size)
        sys.stderr.flush()
        os.dup2(kept, 2)
        said.seek(0)
        lines = said.read().decode().splitlines()
    expect(not lines, f"it says: {lines[:1]}")


@complaint("pytorch#166116", "near the limit, a loop makes no driver call")
def silent_loop() -> None:
    def step() -> None:
        for size in (MOST // 2, 3 * MOST // 4, 5 * MOST // 8):
            mebibytes(size)

    for _ in range(3):
        step()
    before = {name: driver().spwSimCalls(name.encode()) for name in ("cuMemCreate", "cuMemAlloc")}
    step()
    made = sum(driver().spwSimCalls(name.encode()) - count for name, count in before.items())
    expect(made == 0, f"one step takes memory of the driver {made} times")


# ---- Streams


def pending_on_a_side_stream(mib: int) -> Any:
    """A freed block of a larger segment whose other part lives, used by a side stream that is not done."""
    mebibytes(mib + 100)
    kept = mebibytes(100)
    block = mebibytes(mib)
    used_on(torch.cuda.Stream(), block)
    return kept


@complaint("pytorch#189504, PR#191302", "a block that a wait made free serves the request that waited", RUN_AHEAD)
def wait_serves_the_request() -> None:
    kept = pending_on_a_side_stream(5 * MOST // 8)
    mebibytes(5 * MOST // 8)
    del kept


@complaint("pytorch#171771", "a request waits for as many pending frees as it needs", RUN_AHEAD)
def waits_for_enough() -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    wanted, other = mebibytes(MOST // 2), mebibytes(MOST // 4)
    used_on(first, wanted)
    used_on(second, other)
    mark = driver().spwSimMark(second.cuda_stream)
    del wanted, other
    mebibytes(MOST // 2)
    expect(not driver().spwSimIsComplete(second.cuda_stream, mark), "it waits for all of them")


@complaint("pytorch#147168, #181191, torchtitan#735", "near the limit, record_stream costs no host wait", RUN_AHEAD)
def record_stream_in_a_loop() -> None:
    side = torch.cuda.Stream()
    for _ in range(3):
        used_on(side, mebibytes(MOST // 3))
    before = driver().spwSimHostWaits()
    for _ in range(10):
        used_on(side, mebibytes(MOST // 3))
    waits = driver().spwSimHostWaits() - before
    expect(waits == 0, f"the host waits {waits} times in 10 steps")


@complaint("Megatron-LM#6885", "memory that a side stream cached serves the main stream")
def stranded_on_a_stream() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        mebibytes(3 * MOST // 4)
        kept = mebibytes(MOST // 8)
    mebibytes(MOST // 2)
    del kept


@complaint("pytorch#186213, PR#192269", "addresses for 64 streams of a large device", "capacity:8TiB,backing:none")
def many_streams() -> None:
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    kept = []
    for _ in range(64):
        with torch.cuda.stream(torch.cuda.ExternalStream(new_stream())):
            kept.append(mebibytes(2))
    del kept


def new_stream() -> int:
    """PyTorch's own streams are no more than 32."""
    stream = ctypes.c_void_p()
    ctypes.CDLL(f"libcudart.so.{torch.version.cuda[:2]}").cudaStreamCreate(ctypes.byref(stream))
    return stream.value or 0


# ---- Errors of the driver


@complaint("pytorch#188008", "after an error in mapping memory, requests are served again")
def error_in_mapping() -> None:
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    mebibytes(3)
    for call in (b"cuMemSetAccess", b"cuMemMap", b"cuMemCreate"):
        driver().spwSimInjectFault(call, ctypes.c_uint64(1), 2)
        with contextlib.suppress(torch.OutOfMemoryError):
            mebibytes(64)
        mebibytes(65)


# ---- Other processes, other libraries


def handle_of(block: Any) -> bytes:
    """As a custom all-reduce makes it, by the runtime."""
    handle = ctypes.create_string_buffer(64)
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda[:2]}")
    status = runtime.cudaIpcGetMemHandle(handle, ctypes.c_void_p(block.data_ptr()))
    runtime.cudaGetLastError()
    if status in (801, 34, 36, 500):
        raise NotApplicableError("the simulated driver has no handles for other processes")
    expect(status == 0, f"cudaIpcGetMemHandle gives error {status}")
    return handle.raw


@complaint(
    "vllm#42609, #9774, aiter#4174",
    "cudaIpcGetMemHandle of a tensor (custom all-reduce)",
    setting="backend:malloc",
)
def handle_of_a_tensor() -> None:
    handle_of(mebibytes(3))


@complaint("pytorch#198305", "a tensor shared twice has one handle")
def handle_of_a_tensor_is_one() -> None:
    block = mebibytes(3)
    if memory.get_allocator_backend() == "native":
        handle_of(block)
    first, second = (block.untyped_storage()._share_cuda_()[1] for _ in range(2))
    expect(first == second, "it has two")


@complaint("miles#2199, slime#1086", "memory left for other libraries below the limit")
def memory_for_others() -> None:
    memory.set_per_process_memory_fraction(0.5)
    for size in range(3, MOST // 3, 7):
        mebibytes(size)
    pointer = ctypes.c_void_p()
    status = ctypes.CDLL(f"libcudart.so.{torch.version.cuda[:2]}").cudaMalloc(
        ctypes.byref(pointer), ctypes.c_size_t(MOST // 2 * MIB)
    )
    expect(status == 0, "half of the device is the limit, and another library cannot have the other half")


# ---- Pinned host memory


@complaint(
    "pytorch#106606, PR#171662, vllm#56410",
    "pinned memory is not rounded up to a power of two",
    setting="pinned_memory:on",
)
def pinned_rounding() -> None:
    torch.cuda.init()
    kept = torch.empty(33 * MIB, dtype=torch.uint8, pin_memory=True)
    taken = memory.host_memory_stats()["allocated_bytes.current"]
    expect(taken <= 34 * MIB, f"33 MiB take {taken / MIB:.0f} MiB")
    del kept


# ---- What no test here can find


def not_tested(name: str, asks: str, why: str) -> None:
    def body() -> None:
        raise NotApplicableError(why)

    complaint(name, asks)(body)


not_tested("pytorch#181094, PR#186161", "the first pinned memory is quick", "a matter of time, which is not simulated")
not_tested("pytorch#158657, torchtitan#2379", "checkpoints on the host and on disk", "not asked of an allocator")
not_tested("torch_memory_saver#24, #32", "a preloaded cudaMalloc sees expandable segments", "nothing is preloaded here")
not_tested(
    "pytorch#114934, PR#124688, torchtitan#425", "how much memory a run will need", "`spillway dryrun` answers it"
)
