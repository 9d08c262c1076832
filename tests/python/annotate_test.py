"""annotate(): what model and optimizer hold, in the library's counters and dumps."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

import spillway
import warm
from spillway._library import check, library

assert spillway.install("plain")

torch: Any = importlib.import_module("torch")

FLOAT = 4
NAMES = ("parameter_bytes", "gradient_bytes", "buffer_bytes", "optimizer_bytes")


def said(device: int = 0) -> tuple[int, ...]:
    """What the library answers."""
    counts = []
    for name in NAMES:
        count = ctypes.c_uint64()
        check(library().spw_annotation(device, name.encode(), ctypes.byref(count)))
        counts.append(count.value)
    return tuple(counts)


def dumped() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump.json"
        check(library().spw_dump(str(path).encode(), None))
        return json.loads(path.read_text())["devices"][0]["annotations"]


def model_of(width: int) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width)).cuda()


class Annotate(unittest.TestCase):
    def test_before_and_after_the_first_step(self) -> None:
        width = 100
        parameters = FLOAT * (width * width + 3 * width)
        buffers = FLOAT * 2 * width + 8
        model = model_of(width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        spillway.annotate(model, optimizer)
        self.assertEqual(said(), (parameters, 0, buffers, 0))

        torch.nn.functional.mse_loss(
            model[0](torch.zeros(4, width, device="cuda")), torch.zeros(4, width).cuda()
        ).backward()
        optimizer.step()
        linear = FLOAT * (width * width + width)
        counts = spillway.annotate(model, optimizer)
        self.assertEqual(said(), (parameters, linear, buffers, linear))
        self.assertEqual(tuple(counts[0][name] for name in NAMES), said())
        annotations = dumped()
        free, total = torch.cuda.mem_get_info()
        # What stays free by the option reserve is nobody's, and not free for PyTorch.
        outside = total - free - torch.cuda.memory_reserved()
        kept_free = min(max(total // 64, 256 << 20), 512 << 20)
        self.assertEqual(annotations.pop("outside_bytes"), outside - kept_free)
        self.assertEqual(annotations, dict(zip(NAMES, said(), strict=True)))
        spillway.annotate(model, optimizer)
        self.assertEqual(said(), (parameters, linear, buffers, linear))

    def test_another_model_replaces(self) -> None:
        spillway.annotate(model_of(64))
        first = said()
        spillway.annotate(model_of(32))
        self.assertLess(said()[0], first[0])
        spillway.annotate(torch.nn.Linear(8, 8))
        self.assertEqual(said(), (0, 0, 0, 0))

    def test_a_storage_counts_once(self) -> None:
        model = torch.nn.Module()
        model.one = torch.nn.Linear(10, 10, bias=False).cuda()
        model.tied = torch.nn.Linear(10, 10, bias=False)
        model.tied.weight = model.one.weight
        flat = torch.zeros(1000, device="cuda")
        model.first = torch.nn.Parameter(flat[:10])
        model.second = torch.nn.Parameter(flat[10:])
        model.register_buffer("view", flat[5:20])
        spillway.annotate(model)
        self.assertEqual(said(), (FLOAT * 1100, 0, 0, 0))

    def test_optimizers(self) -> None:
        """Several; with a parameter that the model lacks; with state in lists."""
        model = torch.nn.Linear(10, 10, bias=False).cuda()
        extra = torch.nn.Parameter(torch.zeros(50, device="cuda"))
        first = torch.optim.SGD(model.parameters(), lr=0.1)
        second = torch.optim.SGD([extra], lr=torch.tensor(0.1, device="cuda"))
        second.state[extra]["history"] = [torch.zeros(7, device="cuda"), {"older": torch.zeros(3, device="cuda")}]
        spillway.annotate(model, [first, second])
        self.assertEqual(said(), (FLOAT * 150, 0, 0, FLOAT * 11))

    def test_a_tensor_made_of_others(self) -> None:
        two: Any = importlib.import_module("torch.testing._internal.two_tensor")
        model = torch.nn.Module()
        model.register_buffer("both", two.TwoTensor(torch.zeros(6, device="cuda"), torch.zeros(6, device="cuda")))
        spillway.annotate(model)
        self.assertEqual(said(), (0, 0, FLOAT * 12, 0))

    def test_what_is_no_model_or_no_optimizer(self) -> None:
        model = torch.nn.Linear(2, 2)
        for words, said_of in (
            ((None,), "torch.nn.Module, not NoneType"),
            ((model, [None]), "torch.optim, not NoneType"),
        ):
            with self.assertRaisesRegex(spillway.SpillwayError, said_of):
                spillway.annotate(*words)

    def test_where_spillway_is_not_in_use(self) -> None:
        code = """
import spillway, torch
spillway.install()
print(spillway.annotate(torch.nn.Linear(10, 10, bias=False).cuda())[0]["parameter_bytes"])
"""
        done = warm.run(code, SPILLWAY_DISABLE="1", SPILLWAY_LIBRARY="/nowhere")
        self.assertEqual(done.stdout.strip(), str(FLOAT * 100), done.stderr)

    def test_two_devices(self) -> None:
        code = """
import spillway, torch
spillway.install("plain")
model = torch.nn.ModuleList([torch.nn.Linear(10, 10, bias=False).to(f"cuda:{device}") for device in (0, 1)])
print(*[spillway.annotate(model)[device]["parameter_bytes"] for device in (0, 1)])
"""
        if not os.environ.get("SPILLWAY_TEST_GPU") or torch.cuda.device_count() > 1:
            done = warm.run(code, SPILLWAY_SIM="devices:2")
            self.assertEqual(done.stdout.split(), [str(FLOAT * 100)] * 2, done.stderr)


if __name__ == "__main__":
    unittest.main()
