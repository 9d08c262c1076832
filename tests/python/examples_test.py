"""Every example of examples/pytorch on PyTorch's own allocator and on Spillway: it runs, and each is asked the same."""

from __future__ import annotations

import importlib
import os
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "pytorch"))
from simulated import Outcome  # noqa: E402
from spillway._pytorch.releases import use_nccl_without_hook  # noqa: E402

from examples import EXAMPLES, FOLDER, Example  # noqa: E402

# The examples import these, once for all children.
for name in ("torch._dynamo", "torch.distributed.fsdp", "transformers"):
    importlib.import_module(name)

SMALL = "--width 128 --layers 2 --batch 2 --length 64 --steps 3"
ON_GPU = "SPILLWAY_TEST_GPU" in os.environ
BACKENDS = {"native": "native", "plain": "pluggable", "full": "spillway"}


class WithOlderGroups(Example):
    """With process groups of the kind that plain has: from release to release they ask for other blocks."""

    def program(self, arguments: str) -> Callable[[], None]:
        main = super().program(arguments)

        def with_older_groups() -> None:
            use_nccl_without_hook()
            main()

        return with_older_groups


class Examples(unittest.TestCase):
    def outcomes(self, example: Example, allocator: str) -> list[Outcome]:
        # Hugging Face's Trainer, for one, takes all devices that it sees.
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(example.ranks)))} if ON_GPU else {}
        with mock.patch.dict(os.environ, seen):
            outcomes = example.run(allocator, 1 << 30, SMALL)
        for outcome in outcomes:
            self.assertEqual(outcome.failure, "")
            self.assertEqual(outcome.backend, BACKENDS[allocator])
        return outcomes

    def test_each_allocator_is_asked_the_same(self) -> None:
        devices = max(1, len(list(Path("/dev").glob("nvidia[0-9]*")))) if ON_GPU else 2
        for example in EXAMPLES:
            if example.ranks > devices:
                continue  # one GPU for each rank
            native = {"full": self.outcomes(example, "native")}
            older = WithOlderGroups(example.command, example.ranks)
            native["plain"] = native["full"] if example.ranks == 1 else self.outcomes(older, "native")
            for allocator in ("plain", "full"):
                with self.subTest(f"{example.command}, {allocator}"):
                    for ours, theirs in zip(self.outcomes(example, allocator), native[allocator], strict=True):
                        for name in ("allocation.all.allocated", "requested_bytes.all.allocated"):
                            self.assertEqual(ours.stats[name], theirs.stats[name], name)
                        self.assertGreater(ours.stats["allocation.all.allocated"], 100)

    def test_no_example_is_forgotten(self) -> None:
        scripts = {path.name for path in FOLDER.glob("*.py")} - {"language_model.py"}
        self.assertEqual(scripts, {example.script.name for example in EXAMPLES})


if __name__ == "__main__":
    unittest.main()
