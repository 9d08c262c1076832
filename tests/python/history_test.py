"""The history of memory, beside that of PyTorch's own allocator for the same program, and as the viewer replays it."""

from __future__ import annotations

import base64
import importlib
import json
import pickle
import re
import time
import unittest
from typing import Any

import warm

PROGRAM = """
import json, sys, torch

if sys.argv[1] == "spillway":
    import spillway
    spillway.install()

def block(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")

MIB = 1 << 20
early = block(3 * MIB)
torch.cuda.memory._record_memory_history()
torch.cuda.memory._set_memory_metadata("first")
small, large = block(1000), block(5 * MIB + 300)
torch.cuda.memory._set_memory_metadata("")
del small
if hasattr(torch.cuda.memory, "_annotate_tensor"):  # of later releases
    torch.cuda.memory._annotate_tensor(large[100:], "kept")
    assert torch.cuda.memory._allocation_traceback(large.data_ptr())
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    shared, kept = block(2 * MIB), block(700)
shared.record_stream(torch.cuda.current_stream())
del shared, early
torch.cuda.synchronize()
torch.cuda.empty_cache()
with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
    pooled = block(4 * MIB)
del pooled
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    doubled = large.float() * 2
    del doubled
graph.reset()
try:
    block(2 * torch.cuda.get_device_properties(0).total_memory + 5)
except torch.OutOfMemoryError:
    pass
torch.cuda.memory._snapshot()
events = torch.cuda.memory._snapshot()["device_traces"][0]
keys = ("action", "size", "stream", "time_us", "user_metadata")
print(json.dumps([{key: event.get(key, "") for key in keys} for event in events]))
"""

# More events on every device than are kept.
BOUNDED = """
import json, sys, torch

if sys.argv[1] == "spillway":
    import spillway
    spillway.install()

def traces():
    return [[(event["action"], event["size"]) for event in trace]
            for trace in torch.cuda.memory._snapshot()["device_traces"]]

def record(most):
    torch.cuda.memory._record_memory_history(max_entries=most)

devices = [f"cuda:{device}" for device in range(torch.cuda.device_count())]
blocks = [torch.empty(1 << 20, dtype=torch.uint8, device=device) for device in devices]
record(10)
for device in devices:
    for step in range(20):
        torch.empty((1 << 20) - step, dtype=torch.uint8, device=device)
kept = traces()
record(4)
print(json.dumps([kept, traces()]))
"""

# Memory that grows, is shown by several views, changes streams and pools, and goes back.
SEGMENTS = """
import pickle, sys, torch
import spillway
spillway.install()

def block(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")

reserved = []
def look():
    torch.cuda.memory._snapshot()
    reserved.append(torch.cuda.memory_reserved())

MIB = 1 << 20
early = [block(3 * MIB) for _ in range(4)]
del early[1::2]
begin = torch.cuda.memory_reserved()
torch.cuda.memory._record_memory_history()
blocks = [block(4 * MIB + 1000 * step) for step in range(12)]
look()
del blocks[::2]
wide = block(20 * MIB + 700)
look()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    beside = [block(6 * MIB), block(500)]
beside[0].record_stream(torch.cuda.current_stream())
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    pooled = block(5 * MIB)
look()
del wide, beside, early, blocks[1:]
torch.cuda.synchronize()
torch.cuda.empty_cache()
look()
wider = block(31 * MIB)
try:
    block(2 * torch.cuda.get_device_properties(0).total_memory)
except torch.OutOfMemoryError:
    pass
snapshot = torch.cuda.memory._snapshot()
sys.stdout.buffer.write(pickle.dumps((begin, reserved, torch.cuda.memory_reserved(), snapshot)))
"""

# Streams and pools take memory of each other, of a device that is nearly full.
MANY = """
import pickle, random, sys, torch
import spillway
spillway.install()

most, total = 768 << 20, torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(min(1.0, most / total))
torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
dice = random.Random(int(sys.argv[1]))
KIB = 1 << 10
streams = [torch.cuda.current_stream()] + [torch.cuda.Stream() for _ in range(3)]
pools = [None] * 8 + [torch.cuda.MemPool() for _ in range(2)]
live = []

def allocate():
    least, most = dice.choice([(1, 64 * KIB), (KIB, 4096 * KIB), (1 << 20, 60 << 20)])
    live.append(torch.empty(dice.randrange(least, most), dtype=torch.uint8, device="cuda"))

for step in range(1500):
    if live and (dice.random() < 0.5 or sum(block.numel() for block in live) > 600 << 20):
        block = live.pop(dice.randrange(len(live)))
        if dice.random() < 0.2:
            block.record_stream(dice.choice(streams))
        del block
        continue
    try:
        with torch.cuda.stream(dice.choice(streams)):
            if pool := dice.choice(pools):
                with torch.cuda.use_mem_pool(pool):
                    allocate()
            else:
                allocate()
    except torch.OutOfMemoryError:
        live = live[::3]
    if dice.random() < 0.005:
        torch.cuda.empty_cache()
sys.stdout.buffer.write(pickle.dumps(torch.cuda.memory._snapshot()))
"""


def output(program: str, *arguments: str, **environment: str) -> bytes:
    done = warm.run_for_bytes(program, *arguments, **environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def history(allocator: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(output(PROGRAM, allocator))
    return events


def comparable(events: list[dict[str, Any]]) -> list[tuple[str, int, int, str]]:
    """Streams by their order of appearance; what a segment is differs between the two."""
    names: dict[int, int] = {0: 0}
    return [
        (event["action"], event["size"], names.setdefault(event["stream"], len(names)), event["user_metadata"])
        for event in events
        if not event["action"].startswith("segment")
    ]


class Past:
    """What PyTorch's viewer shows of moments before a snapshot: it undoes the events, the last one first."""

    def __init__(self, segments: list[dict[str, Any]]) -> None:
        self.ends: dict[int, int] = {
            segment["address"]: segment["address"] + segment["total_size"] for segment in segments
        }
        blocks = [block for segment in segments for block in segment["blocks"]]
        self.live = {block["address"] for block in blocks if block["state"] != "inactive"}

    def reserved(self) -> int:
        return sum(end - begin for begin, end in self.ends.items())

    def around(self, address: int, size: int = 1) -> int:
        """The beginning of the segment that has these bytes."""
        return next(begin for begin, end in self.ends.items() if begin <= address and address + size <= end)

    def undo(self, event: dict[str, Any]) -> None:
        action, address, end = event["action"], event.get("addr", 0), event.get("addr", 0) + event["size"]
        if action == "alloc":
            self.live.remove(address)
        elif action == "free_completed":
            self.live.add(address)
        elif action == "segment_map":
            begin = self.around(address, event["size"])
            rest = self.ends.pop(begin)
            self.ends.update({first: last for first, last in ((begin, address), (end, rest)) if first < last})
        elif action == "segment_unmap":
            last = self.ends.pop(end, end)
            before = [begin for begin, its_end in self.ends.items() if its_end == address]
            self.ends[before[0] if before else address] = last


class Present:
    """What a viewer draws that follows the events from the first one: bytes that are mapped, and blocks on them."""

    def __init__(self) -> None:
        self.mapped: list[tuple[int, int, int]] = []  # begin, end and stream; no two overlap
        self.blocks: dict[int, int] = {}  # by address: where they end

    def held(self, begin: int, end: int, stream: int) -> int:
        """How many of these bytes the stream has."""
        parts = (min(end, last) - max(begin, first) for first, last, its in self.mapped if its == stream)
        return sum(part for part in parts if part > 0)

    def follow(self, event: dict[str, Any]) -> None:
        action, address, size, stream = event["action"], event.get("addr", 0), event["size"], event["stream"]
        end = address + size
        if action == "segment_map":
            assert all(end <= first or last <= address for first, last, _ in self.mapped), f"{address:#x}: mapped twice"
            self.mapped.append((address, end, stream))
        elif action == "segment_unmap":
            assert all(last <= address or end <= first for first, last in self.blocks.items()), f"{address:#x}: in use"
            assert self.held(address, end, stream) == size, f"{address:#x}: not mapped"
            kept = []
            for first, last, its in self.mapped:
                rest = [(first, min(last, address)), (max(first, end), last)]
                kept += [(part[0], part[1], its) for part in rest if part[0] < part[1]]
            self.mapped = kept
        elif action == "alloc":
            assert self.held(address, end, stream) == size, f"{address:#x}: memory of another, or none"
            self.blocks[address] = end
        elif action == "free_completed":
            del self.blocks[address]


class History(unittest.TestCase):
    def test_blocks_lie_in_memory_of_their_stream(self) -> None:
        for seed in range(1, 3):
            snapshot = pickle.loads(output(MANY, str(seed), SPILLWAY_SIM="capacity:768MiB,backing:none"))
            present = Present()
            for event in snapshot["device_traces"][0]:
                present.follow(event)
            self.assertGreater(len(snapshot["device_traces"][0]), 2000)
            reserved = sum(segment["total_size"] for segment in snapshot["segments"])
            self.assertEqual(sum(end - begin for begin, end, _ in present.mapped), reserved)

    def test_segments_have_the_stack_that_mapped_them(self) -> None:
        snapshot = pickle.loads(output(MANY, "3", SPILLWAY_SIM="capacity:768MiB,backing:none"))
        events = [event for event in snapshot["device_traces"][0] if event["action"].startswith("segment")]
        stacks = [[frame["name"] for frame in holder["frames"]] for holder in events + snapshot["segments"]]
        for names in stacks:
            self.assertIn(names[0], ("allocate", "empty_cache", "_snapshot"))
        self.assertIn(["allocate", "<module>"], [names[:2] for names in stacks[-len(snapshot["segments"]) :]])

    def test_events_are_those_of_the_native_allocator(self) -> None:
        begin = time.time()
        ours = history("spillway")
        end = time.time()
        self.assertEqual(comparable(ours), comparable(history("native")))
        times = [event["time_us"] / 1e6 for event in ours]
        self.assertEqual(times, sorted(times))
        self.assertLessEqual(begin, times[0])
        self.assertLessEqual(times[-1], end)

    def test_each_device_keeps_as_many_events_as_natively(self) -> None:
        kept, fewer = json.loads(output(BOUNDED, "spillway", SPILLWAY_SIM="devices:2"))
        self.assertEqual(kept, json.loads(output(BOUNDED, "native", SPILLWAY_SIM="devices:2"))[0])
        self.assertEqual({len(trace) for trace in kept}, {10})
        # The snapshot is an event too. The native allocator would keep what it has, beyond the new bound.
        self.assertEqual(fewer, [[*trace[-3:], ["snapshot", 1 << 20]] for trace in kept])

    def test_segments_of_the_past(self) -> None:
        begin, reserved, end, snapshot = pickle.loads(output(SEGMENTS))
        events = snapshot["device_traces"][0]
        actions = [event["action"] for event in events]
        self.assertLessEqual({"segment_map", "segment_unmap", "oom"}, set(actions))
        past = Past(snapshot["segments"])
        self.assertEqual(past.reserved(), end)
        for event in reversed(events):
            past.undo(event)
            for address in past.live:
                past.around(address)
            if event["action"] == "snapshot":
                self.assertEqual(past.reserved(), reserved.pop())
        self.assertEqual((past.reserved(), reserved), (begin, []))

    def test_the_viewer_reads_it(self) -> None:
        snapshot = pickle.loads(output(SEGMENTS))[3]
        viewer: Any = importlib.import_module("torch.cuda._memory_viz")
        reserved = sum(segment["total_size"] for segment in snapshot["segments"])
        self.assertIn(f"total_reserved: {viewer.Bytes(reserved)}", viewer.segsum(snapshot))
        self.assertIn("segment_map", viewer.trace(snapshot))
        pages = [
            viewer.segment_plot(snapshot),
            viewer.trace_plot(snapshot),
            viewer.trace_plot(snapshot, plot_segments=True),
        ]
        for page in pages:
            data = re.search(r'"base64": "([^"]+)"', page)
            assert data is not None
            self.assertEqual(pickle.loads(base64.b64decode(data[1])), snapshot)


if __name__ == "__main__":
    unittest.main()
