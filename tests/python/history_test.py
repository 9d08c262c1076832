"""The history of memory, beside that of PyTorch's own allocator for the same program."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import unittest
from typing import Any

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


def history(allocator: str) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, allocator], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    events: list[dict[str, Any]] = json.loads(done.stdout)
    return events


def comparable(events: list[dict[str, Any]]) -> list[tuple[str, int, int, str]]:
    """Streams by their order of appearance; what a segment is differs between the two."""
    names: dict[int, int] = {0: 0}
    return [
        (event["action"], event["size"], names.setdefault(event["stream"], len(names)), event["user_metadata"])
        for event in events
        if not event["action"].startswith("segment")
    ]


class History(unittest.TestCase):
    def test_events_are_those_of_the_native_allocator(self) -> None:
        begin = time.time()
        ours = history("spillway")
        end = time.time()
        self.assertEqual(comparable(ours), comparable(history("native")))
        times = [event["time_us"] / 1e6 for event in ours]
        self.assertEqual(times, sorted(times))
        self.assertLessEqual(begin, times[0])
        self.assertLessEqual(times[-1], end)


if __name__ == "__main__":
    unittest.main()
