"""What a program asks torch.cuda, answered or refused by the integration without a compiler. One process for most."""

from __future__ import annotations

import importlib
import subprocess
import tempfile
import unittest
from collections.abc import Callable
from typing import Any

import spillway
import warm
from spillway._library import check, library

assert spillway.install("plain").mode == "plain"

# Imported tests are run here too.
from both import (  # noqa: E402
    MIB,
    Blocks,  # noqa: F401
    Counters,  # noqa: F401
    Graphs,  # noqa: F401
    Memory,
    OutOfMemory,  # noqa: F401
    Settings,  # noqa: F401
    Snapshots,  # noqa: F401
    mebibytes,
    torch,
)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return warm.run(code, **{"CXX": "no-such-compiler", **environment})


def pools() -> set[tuple[int, int]]:
    return {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}


class Install(unittest.TestCase):
    def test_needs_no_compiler(self) -> None:
        code = "import spillway, torch; print(spillway.install('plain').mode); torch.zeros(1, device='cuda')"
        with tempfile.TemporaryDirectory() as folder:
            done = run(code, SPILLWAY_CACHE=folder, SPILLWAY_CUDA_INCLUDE=folder)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "plain"), done.stderr)

    def test_again(self) -> None:
        self.assertEqual(spillway.install().mode, "plain")
        with self.assertRaisesRegex(spillway.SpillwayError, "installed as 'plain' already"):
            spillway.install("full")

    def test_too_late(self) -> None:
        done = run("import spillway, torch; torch.zeros(1, device='cuda'); spillway.install('plain')")
        self.assertIn("SpillwayError: CUDA is initialised already", done.stderr)

    def test_after_another_allocator(self) -> None:
        code = """
import ctypes, spillway, torch
from spillway._pytorch.hooks import address
allocate, free = [address(getattr(ctypes.CDLL(None), name)) for name in ("malloc", "free")]
torch._C._cuda_changeCurrentAllocator(torch._C._cuda_customAllocator(allocate, free))
spillway.install("plain")
"""
        self.assertIn("SpillwayError: the allocator 'pluggable' was chosen already", run(code).stderr)

    def test_benchmark_is_on(self) -> None:
        code = """
import spillway, torch
torch.backends.cudnn.benchmark = True
try:
    spillway.install("plain")
except spillway.SpillwayError as problem:
    print(problem)
torch.zeros(1, device="cuda")
print(torch.cuda.get_allocator_backend())
"""
        done = run(code)
        self.assertIn("torch.backends.cudnn.benchmark", done.stdout)
        self.assertEqual(done.stdout.split()[-1], "native", done.stderr)

    def test_no_caching(self) -> None:
        code = "import spillway; spillway.install('plain')"
        for value in ("1", "0", ""):  # PyTorch asks only whether it is set
            done = run(code, PYTORCH_NO_CUDA_MEMORY_CACHING=value)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("SpillwayError: PYTORCH_NO_CUDA_MEMORY_CACHING is not served", done.stderr)


class Devices(Memory):
    def test_a_device_that_is_not_there(self) -> None:
        for ask in (torch.cuda.memory_stats, torch.cuda.reset_peak_memory_stats):
            with self.assertRaisesRegex(spillway.SpillwayError, "device"):
                ask(63)


class Errors(Memory):
    def test_in_another_thread(self) -> None:
        done = run("""
import spillway, threading, torch
spillway.install("plain")
caught = []
def body():
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as problem:
        caught.append(problem)
threads = [threading.Thread(target=body) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(caught))
""")
        self.assertEqual(done.stdout.strip(), "4", done.stderr)

    def test_where_pytorch_lacks_the_names(self) -> None:
        for name in ("OOM_VTABLE", "ERROR_CONSTRUCTOR"):
            done = run(f"""
import spillway, torch
spillway._pytorch.releases.{name} = "nowhere"
spillway.install("plain")
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
except RuntimeError as problem:
    print(type(problem).__name__, problem)
""")
            self.assertTrue(done.stdout.startswith("RuntimeError CUDA out of memory"), done.stdout + done.stderr)


class Streams(Memory):
    def test_a_recorded_block_waits_for_its_stream(self) -> None:
        side = torch.cuda.Stream()
        tensor = mebibytes(9)
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            tensor.zero_()
        tensor.record_stream(side)
        address = tensor.data_ptr()
        del tensor
        states = [b["state"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["address"] == address]
        self.assertEqual(states, ["active_pending_free"])

    def test_a_graph_has_memory_of_its_own(self) -> None:
        source = torch.zeros(MIB, device="cuda")
        before = pools()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = source * 2
            result = doubled + 1
        del doubled
        self.assertEqual(pools() - before, {graph.pool()})
        others = [mebibytes(4) for _ in range(8)]
        self.assertNotIn(result.data_ptr(), [other.data_ptr() for other in others])
        mine = torch.cuda.memory_snapshot(graph.pool())
        self.assertEqual({segment["segment_pool_id"] for segment in mine}, {graph.pool()})
        graph.replay()
        torch.cuda.synchronize()
        del result
        graph.reset()
        torch.cuda.empty_cache()
        self.assertEqual(pools() - before, set())


class Refused(Memory):
    def refuses(self, ask: Callable[[], object], what: str) -> None:
        with self.assertRaises(spillway.SpillwayError) as caught:
            ask()
        text = str(caught.exception)
        self.assertIn(what, text)
        self.assertIn("use spillway.install(mode='full')", text)
        self.assertNotIn("\n", text)

    def test_history(self) -> None:
        record = torch.cuda.memory._record_memory_history
        self.refuses(record, "history")
        self.refuses(lambda: record("state", max_entries=5), "history")
        self.refuses(lambda: record(True), "history")
        record(None)
        record(False)
        self.assertFalse(torch._C._cuda_isHistoryEnabled())
        self.refuses(lambda: torch.cuda.memory._set_memory_metadata("phase"), "metadata")
        torch.cuda.memory._set_memory_metadata("")
        self.refuses(lambda: torch._C._cuda_attach_out_of_memory_observer(print), "observer")

    def test_pools(self) -> None:
        self.refuses(torch.cuda.MemPool, "MemPool")
        self.refuses(lambda: torch.cuda.MemPool(spillway.mempool_allocator()), "MemPool")
        self.refuses(lambda: torch._C._cuda_getCheckpointState(0, (0, 1)), "reduce-overhead")
        self.refuses(lambda: torch._C._cuda_setCheckpointPoolState(0, None, [], []), "reduce-overhead")
        self.refuses(lambda: torch._C._cuda_checkPoolLiveAllocations(0, (0, 1), set()), "reduce-overhead")

    def test_other_processes(self) -> None:
        reductions: Any = importlib.import_module("torch.multiprocessing.reductions")
        self.refuses(lambda: reductions.reduce_tensor(mebibytes(1)), "another process")
        self.refuses(lambda: torch.UntypedStorage._new_shared_cuda(0, b"", 0, 0, b"", 0, b"", True), "another process")

    def test_cudnn_benchmark(self) -> None:
        def set_it() -> None:
            torch.backends.cudnn.benchmark = True

        self.refuses(set_it, "cudnn.benchmark")
        self.refuses(lambda: torch.backends.cudnn.flags(benchmark=True).__enter__(), "cudnn.benchmark")
        self.assertFalse(torch.backends.cudnn.benchmark)
        torch.backends.cudnn.benchmark = False

    def test_no_caching(self) -> None:
        torch.cuda.caching_allocator_enable(True)
        self.refuses(lambda: torch.cuda.caching_allocator_enable(False), "caching_allocator_enable(False)")

    def test_sanitizer(self) -> None:
        self.refuses(torch._C._activate_gpu_trace, "sanitizer")

    def test_profiler_warns(self) -> None:
        profile = torch.autograd.profiler.profile
        with self.assertWarnsRegex(spillway.SpillwayWarning, "install\\(mode='full'\\)"):
            profile(profile_memory=True)
        with torch.profiler.profile() as used:
            mebibytes(1)
        self.assertTrue(used.key_averages())


class Programs(Memory):
    def test_two_devices(self) -> None:
        code = """
import spillway, torch
spillway.install("plain")
source = torch.arange(100_000)
there = source.to("cuda:0").to(f"cuda:{torch.cuda.device_count() - 1}")
torch.cuda.synchronize(there.device)
print(torch.equal(there.cpu(), source))
"""
        done = run(code, SPILLWAY_SIM="devices:2")
        self.assertEqual((done.stdout.strip(), done.stderr), ("True", ""))

    def test_training_frees_all_it_took(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        steady = set()
        for step in range(4):
            model(torch.zeros(32, 256, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step > 0:
                steady.add(torch.cuda.memory_allocated())
        self.assertEqual(len(steady), 1)
        check(library().spw_validate(0))


if __name__ == "__main__":
    unittest.main()
