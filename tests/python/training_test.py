"""The same training on PyTorch's own allocator, on Spillway, and with memory moved out and back: the same losses.

On a GPU 200 steps; on the simulated device a few, which prove the programs. No kernel computes there, so losses are
what lay in the memory, and only the weights are compared, which were copied.
"""

from __future__ import annotations

import json
import os
import unittest
from pathlib import Path
from typing import Any

import warm

COMPUTES = "SPILLWAY_TEST_GPU" in os.environ
STEPS = 200 if COMPUTES else 12
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pytorch"
PROGRAM = """
import hashlib, json, os, sys, tempfile, torch

way, steps = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, sys.argv[3])
from language_model import VOCABULARY, LanguageModel

if way != "native":
    import spillway
    from spillway._library import check, library
    spillway.install()
if os.environ.get("SPILLWAY_TEST_GPU") is None:
    torch.backends.cudnn.enabled = False  # it is not simulated
    torch.backends.cuda.enable_cudnn_sdp(False)
torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
model = LanguageModel(256, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters())
activations = None
if way == "offload":
    activations = spillway.offload_activations(model, ["layers.*"], min_bytes=64 << 10)
    spillway.offload_optimizer(optimizer)

def device():
    with tempfile.NamedTemporaryFile() as file:
        check(library().spw_dump(file.name.encode(), b"json"))
        return json.load(open(file.name))["devices"][0]

def driver_calls():
    return {} if way == "native" else device()["stats"]["driver_calls"]

losses, placed_bytes = [], 0
for step in range(steps):
    if step == steps // 2:
        torch.cuda.synchronize()
        before = driver_calls()
    text = torch.randint(VOCABULARY, (8, 129)).cuda(non_blocking=True)
    loss = model(text)
    if way == "full" and step == 1:
        placed_bytes = device()["stats"]["host_placed_bytes"]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
torch.cuda.synchronize()
calls = {name: count - before[name] for name, count in driver_calls().items()}
weights = [parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()]
print(json.dumps({
    "losses": [loss.cpu().numpy().tobytes().hex() for loss in losses],
    "weights": hashlib.sha256(b"".join(weights)).hexdigest(),
    "calls": calls,
    "placed_bytes": placed_bytes,
    "stashed_bytes": activations.stats()["stashed_bytes"] if activations else 0,
}))
"""


def train(way: str, **environment: str) -> dict[str, Any]:
    program = [PROGRAM, way, str(STEPS), str(EXAMPLES)]
    done = warm.run(*program, **{"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **environment})
    if done.returncode != 0:
        raise AssertionError(f"{way}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Training(unittest.TestCase):
    native: dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        cls.native = train("native")

    def equals_native(self, found: dict[str, Any]) -> None:
        self.assertEqual(len(found["losses"]), STEPS)
        if COMPUTES:
            self.assertEqual(found["losses"], self.native["losses"])
        self.assertEqual(found["weights"], self.native["weights"])

    def test_on_spillway_and_without_a_call_of_the_driver_once_it_is_steady(self) -> None:
        found = train("full")
        self.equals_native(found)
        self.assertEqual({name: count for name, count in found["calls"].items() if count}, {})

    def test_with_activations_and_optimizer_state_moved(self) -> None:
        found = train("offload")
        self.equals_native(found)
        self.assertGreater(found["stashed_bytes"], 0)

    def test_with_so_little_memory_that_placement_is_in_the_host(self) -> None:
        found = train("full", SPILLWAY_CONF="limit:100MiB,overflow:host,overflow_limit:4GiB,overflow_min:64KiB")
        self.equals_native(found)
        self.assertGreater(found["placed_bytes"], 0)


if __name__ == "__main__":
    unittest.main()
