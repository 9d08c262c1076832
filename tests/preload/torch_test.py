"""PyTorch as it is, on its own allocator, under the preload library: its segments are Spillway's blocks."""

from __future__ import annotations

import json
import sys
import textwrap
import unittest
from pathlib import Path

from under import AUDITOR, ON_GPU, PRELOAD, SIM, Run, run

STEPS = 200 if ON_GPU else 4
TRAIN = f"""
import json
import torch

torch.manual_seed(0)
torch.backends.cudnn.enabled = False
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
side = torch.cuda.Stream()
losses = []
for step in range({STEPS}):
    data = torch.full((64, 512), step / {STEPS}, device="cuda")
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    with torch.cuda.stream(side):
        other = torch.ones(1 << 20, device="cuda")
torch.cuda.synchronize()
print(json.dumps([loss.item() for loss in losses]))
"""
SERVED = """
import ctypes, os, tempfile
torch.cuda.empty_cache()
spillway = ctypes.CDLL(os.environ["SPILLWAY_LIBRARY"])
path = tempfile.mktemp(suffix=".json")
assert spillway.spw_dump(path.encode(), None) == 0
served = json.load(open(path))["devices"][0]["stats"]
os.unlink(path)
native = torch.cuda.memory_stats()
print(json.dumps({
    "segments": sum(segment["total_size"] for segment in torch.cuda.memory_snapshot()),
    "reserved": native["reserved_bytes.all.current"],
    "allocations": native["num_device_alloc"],
    "frees": native["num_device_free"],
    # In the program's hands: what it freed is active until its epoch is closed.
    "served_bytes": served["allocated_bytes"]["all"]["current"],
    "served": served["allocation"]["all"]["allocated"],
    "served_live": served["allocation"]["all"]["current"],
}))
"""

# The integration beside the preload: PyTorch asks Spillway for tensors, and nobody serves them twice.
BOTH = """
import json
import spillway
spillway.install()
import torch
kept = [torch.zeros(1 << 20, device="cuda") for _ in range(8)]
torch.cuda.synchronize()
print(json.dumps({"count": torch.cuda.memory_stats()["allocation.all.current"]}))
"""


# Segments that PyTorch maps itself, some of which it unmaps again.
EXPANDABLE = """
import torch
kept = [torch.ones(3 << 20, device="cuda") for _ in range(10)]
del kept[::2]
torch.cuda.empty_cache()
print(torch.cuda.memory_stats()["reserved_bytes.all.current"])
"""


def train(program: str, preload: list[Path], **variables: str) -> Run:
    stand_ins = [] if ON_GPU else sorted(path for path in SIM.glob("*.so.*"))
    return run(
        sys.executable,
        "-c",
        textwrap.dedent(program),
        preload=[*preload, *stand_ins],
        simulated="capacity:8GiB,races:off",
        **variables,
    )


class Torch(unittest.TestCase):
    def test_training_on_its_own_allocator(self) -> None:
        done = train(TRAIN + SERVED, [PRELOAD])
        self.assertEqual(done.code, 0, done.err)
        losses, counts = map(json.loads, done.out.splitlines()[-2:])
        self.assertGreater(counts["allocations"], 2)
        self.assertEqual(counts["segments"], counts["reserved"])
        self.assertNotIn("spillway:", done.err)
        if ON_GPU:  # where cuBLAS allocates too, and numbers mean something
            self.assertGreaterEqual(counts["served"], counts["allocations"])
            self.assertEqual(json.loads(train(TRAIN, []).out), losses)
        else:
            self.assertEqual(counts["served_bytes"], counts["reserved"])
            self.assertEqual(counts["served"], counts["allocations"])
            self.assertEqual(counts["served_live"], counts["allocations"] - counts["frees"])

    def test_expandable_segments_are_counted(self) -> None:
        done = train(EXPANDABLE, [PRELOAD], PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        self.assertEqual(done.code, 0, done.err)
        reserved = int(done.out.splitlines()[-1])
        self.assertGreater(reserved, 0)
        self.assertEqual(done.device()["annotations"]["preload_vmm_bytes"], reserved)

    def test_beside_the_integration_everything_is_served_once(self) -> None:
        done = train(BOTH, [PRELOAD], LD_AUDIT=str(AUDITOR))
        self.assertEqual(done.code, 0, done.err)
        counts = json.loads(done.out.splitlines()[-1])
        self.assertEqual(counts["count"], 8)
        self.assertEqual(done.served(), 8)
        self.assertNotIn("preload_plain_bytes", done.device()["annotations"])


if __name__ == "__main__":
    unittest.main()
