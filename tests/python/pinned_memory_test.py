"""Pinned host memory served by Spillway: bytes, streams, graphs and counters. One process for most."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import unittest
from typing import Any

import spillway
import warm
from spillway._pytorch.releases import release_of

assert spillway.install("full", pinned_memory=True)

from both import MIB, torch  # noqa: E402


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return warm.run(code, **environment)


def pinned(size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def held_bytes() -> int:
    return int(torch.cuda.host_memory_stats()["allocated_bytes.current"])


class Pinned(unittest.TestCase):
    def setUp(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_host_memory_stats()


@unittest.skipIf(release_of(torch) < (2, 15), "what PyTorch has since 2.15")
class History(Pinned):
    def test_it_is_refused(self) -> None:
        record = torch.cuda.memory._record_memory_history
        self.addCleanup(record, None)
        with self.assertRaisesRegex(NotImplementedError, "record_pinned_host_memory is not served"):
            record(record_pinned_host_memory=True)
        record(record_pinned_host_memory=False)


class Bytes(Pinned):
    def test_they_go_to_the_device_and_back(self) -> None:
        source = torch.arange(300_000)
        host = source.pin_memory()
        self.assertTrue(host.is_pinned())
        self.assertFalse(source.is_pinned())
        there = host.cuda(non_blocking=True)
        back = torch.empty_like(source, pin_memory=True)
        back.copy_(there, non_blocking=True)
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(back, source))

    def test_a_loader_pins_its_batches(self) -> None:
        data = torch.utils.data.TensorDataset(torch.arange(1000))
        loader = torch.utils.data.DataLoader(data, batch_size=64, pin_memory=True)
        before = torch.cuda.host_memory_stats()["active_requests.allocated"]
        seen = []
        for (batch,) in loader:
            self.assertTrue(batch.is_pinned())
            seen.append(batch.cuda(non_blocking=True))
        self.assertTrue(torch.equal(torch.cat([batch.cpu() for batch in seen]), torch.arange(1000)))
        self.assertEqual(torch.cuda.host_memory_stats()["active_requests.allocated"] - before, len(loader))

    def test_size_zero(self) -> None:
        self.assertEqual(pinned(0).data_ptr(), 0)

    def test_it_is_no_more_than_was_asked_for(self) -> None:
        program = """
import json, sys, torch
if sys.argv[1] == "spillway":
    import spillway
    spillway.install(pinned_memory=True)
torch.cuda.init()  # counters are empty before
torch.manual_seed(3)
kept = []
for _ in range(24):
    # Batches of images of several sizes, their labels, and a tensor that is offloaded.
    for size in (int(torch.randint(30 << 20, 41 << 20, ())), 2048, (5 << 20) + 300):
        kept.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))
stats = torch.cuda.host_memory_stats()
print(json.dumps([sum(tensor.numel() for tensor in kept), stats["allocated_bytes.current"]]))
"""
        ratios = {}
        for allocator in ("spillway", "native"):
            command = [sys.executable, "-c", program, allocator]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            asked, held = json.loads(done.stdout)
            ratios[allocator] = held / asked
        self.assertLessEqual(ratios["spillway"], 1.03)
        self.assertGreater(ratios["native"], 1.4)


class Streams(Pinned):
    @unittest.skipIf("SPILLWAY_TEST_GPU" in os.environ, "when work runs is chosen on the simulated device")
    def test_memory_serves_again_when_its_streams_are_done(self) -> None:
        code = """
import spillway, torch
spillway.install(pinned_memory=True)
sent = torch.arange(1 << 20)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    host = sent.pin_memory()
    address = host.data_ptr()
    there = host.cuda(non_blocking=True)
    del host
other = torch.zeros(1 << 20, dtype=torch.int64).pin_memory()
print(other.data_ptr() == address, end=" ")
side.synchronize()
print(torch.equal(there.cpu(), sent), end=" ")
print(torch.zeros(1 << 20, dtype=torch.int64).pin_memory().data_ptr() == address)
"""
        done = run(code, SPILLWAY_SIM="completion:run-ahead")
        self.assertEqual(done.stdout.split(), ["False", "True", "True"], done.stderr)

    @unittest.skipIf("SPILLWAY_TEST_GPU" in os.environ, "it takes four devices, which the simulator has")
    def test_no_device_is_taken_for_it(self) -> None:
        """A context is some hundred megabytes, on a device that may be another process's."""
        code = """
import ctypes, threading, torch, spillway
spillway.install(pinned_memory=True)
driver = ctypes.CDLL("libcuda.so.1")
def active():
    flags, is_active, found = ctypes.c_uint(), ctypes.c_int(), []
    for device in range(4):
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(is_active))
        found.append(is_active.value)
    return found
x = torch.empty(1 << 20, device="cuda:3")
thread = threading.Thread(target=lambda: torch.empty(1 << 20).pin_memory())
thread.start()
thread.join()
torch.empty(1 << 20, pin_memory=True)
x.to("cpu", non_blocking=True)
for batch in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(8, 1000)), pin_memory=True):
    pass
print(active())
"""
        done = run(code, SPILLWAY_SIM="devices:4")
        self.assertEqual(done.stdout.strip(), "[0, 0, 0, 1]", done.stderr)

    @unittest.skipIf(release_of(torch) < (2, 11), "what a graph pins has a pool of its own as of PyTorch 2.11")
    def test_what_a_graph_pins_stays_until_it_is_gone(self) -> None:
        others = held_bytes()  # such as what a loader's thread has not let go of yet
        source = torch.ones(MIB, dtype=torch.uint8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            host = pinned(MIB)
            host.copy_(source, non_blocking=True)
        address = host.data_ptr()
        del host
        torch._C._host_emptyCache()
        self.assertNotIn(address, [block.data_ptr() for block in [pinned(MIB) for _ in range(8)]])
        graph.replay()
        graph.reset()
        del graph
        # The first marks what the graph had on its streams as freed, the second finds the marks reached.
        torch._C._host_emptyCache()
        torch.cuda.synchronize()
        torch._C._host_emptyCache()
        self.assertEqual(held_bytes(), others)


class Counters(Pinned):
    def test_they_are_named_as_the_native_ones(self) -> None:
        code = """
import json, torch
torch.cuda.init()
torch.ones(1).pin_memory()
print(json.dumps(torch.cuda.host_memory_stats()))
"""
        native = run(code)
        kept = pinned(1)
        self.assertEqual(set(torch.cuda.host_memory_stats()), set(json.loads(native.stdout)))
        del kept

    def test_they_follow_blocks(self) -> None:
        before = torch.cuda.host_memory_stats()
        block = pinned(5 * MIB)
        stats = torch.cuda.host_memory_stats()
        self.assertEqual(stats["active_requests.current"] - before["active_requests.current"], 1)
        self.assertEqual(stats["active_bytes.current"] - before["active_bytes.current"], 5 * MIB)
        self.assertGreaterEqual(stats["allocated_bytes.current"], 5 * MIB)
        self.assertGreater(stats["num_host_alloc"], before["num_host_alloc"])
        del block
        stats = torch.cuda.host_memory_stats()
        self.assertEqual(stats["active_bytes.current"], before["active_bytes.current"])
        self.assertGreaterEqual(stats["active_bytes.peak"], 5 * MIB)
        torch.cuda.reset_peak_host_memory_stats()
        torch.cuda.reset_accumulated_host_memory_stats()
        stats = torch.cuda.host_memory_stats()
        self.assertEqual(stats["active_bytes.peak"], stats["active_bytes.current"])
        self.assertEqual((stats["active_bytes.allocated"], stats["host_alloc_time.total"]), (0, 0))

    def test_an_empty_cache_holds_nothing(self) -> None:
        block = pinned(5 * MIB)
        del block
        self.assertGreaterEqual(held_bytes(), 5 * MIB)
        torch._C._host_emptyCache()
        self.assertEqual(held_bytes(), 0)


class Limits(unittest.TestCase):
    def test_beyond_the_limit_a_request_fails_and_the_program_goes_on(self) -> None:
        code = """
import spillway, torch
spillway.install(pinned_memory=True)
kept = torch.empty(6 << 20, dtype=torch.uint8, pin_memory=True)
try:
    torch.empty(6 << 20, dtype=torch.uint8, pin_memory=True)
except RuntimeError as error:
    print("pinned memory" in str(error), torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True).is_pinned())
"""
        done = run(code, SPILLWAY_CONF="pinned_limit:8MiB")
        self.assertEqual(done.stdout.split(), ["True", "True"], done.stderr)

    def test_memory_of_graphs_that_are_gone_is_used_again(self) -> None:
        code = """
import spillway, torch
spillway.install(pinned_memory=True)
for step in range(4):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        host = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)
    del host
    graph.reset()
    del graph
    kept = torch.empty(6 << 20, dtype=torch.uint8, pin_memory=True)
    del kept
print("all")
"""
        done = run(code, SPILLWAY_CONF="pinned_limit:8MiB")
        self.assertEqual(done.stdout.strip(), "all", done.stderr)

    def test_it_is_for_the_asking(self) -> None:
        code = """
import spillway, torch
spillway.install({})
torch.cuda.init()
block = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)
print(torch.cuda.host_memory_stats()["allocated_bytes.current"] >> 20)
"""
        # PyTorch's own takes 4 MiB.
        for argument, environment, mebibytes in (
            ("", {}, "4"),
            ("", {"SPILLWAY_CONF": "pinned_memory:on"}, "3"),
            ("pinned_memory=False", {"SPILLWAY_CONF": "pinned_memory:on"}, "4"),
            ("pinned_memory=True", {}, "3"),
        ):
            done = run(code.format(argument), **environment)
            self.assertEqual(done.stdout.strip(), mebibytes, done.stderr)

    def test_plain_refuses(self) -> None:
        done = run("import spillway; spillway.install('plain', pinned_memory=True)")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("pinned_memory is not served by Spillway's plain mode", done.stderr.splitlines()[-1])

    def test_settings_for_pytorchs_own_change_nothing(self) -> None:
        setting = {"PYTORCH_ALLOC_CONF": "pinned_use_background_threads:True"}
        for argument, warns in (("", False), ("pinned_memory=True", True)):
            done = run(f"import spillway; spillway.install({argument})", **setting)
            self.assertEqual("pinned_use_background_threads changes nothing" in done.stderr, warns, done.stderr)


if __name__ == "__main__":
    unittest.main()
