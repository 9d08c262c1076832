"""PyTorch programs on PyTorch's own allocator and on Spillway, on the late simulated device: no race is reported, each
allocator is asked the same, and a program that forgets record_stream() is found out.
"""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable
from typing import Any

from on_seeds import ALLOCATORS, SEEDS, Outcome, Program, check_counters, run, torch

# ---- Two streams ----------------------------------------------------------------------------------------------------


def share_between_streams(outcome: Outcome, *, recorded: bool) -> None:
    """A side stream copies what the main stream made, while the main stream goes on."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    for step in range(8):
        made = torch.full((1 << (12 + step % 4),), step, dtype=torch.int64, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            copy = made.clone()
            copy.mul_(1)
        if recorded:
            made.record_stream(side)
        del made
        for _ in range(3):
            torch.full((1 << (12 + step % 4),), -1, dtype=torch.int64, device="cuda").add_(1)
        main.wait_stream(side)
        outcome.damaged += int((copy.cpu() != step).any())
        check_counters()


def shared_with_record(outcome: Outcome) -> None:
    share_between_streams(outcome, recorded=True)


def shared_without_record(outcome: Outcome) -> None:
    share_between_streams(outcome, recorded=False)


def crowd_the_device(outcome: Outcome) -> None:
    """Streams in turn want nearly all memory, so it goes from one to the other while work on it is pending."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    reader = torch.cuda.Stream()
    copies = []
    for step in range(16):
        count = (3 + step % 4) << 20
        with torch.cuda.stream(streams[step // 2 % 3]):
            blocks = [torch.full((count,), step, dtype=torch.int32, device="cuda") for _ in range(2)]
            blocks[0].add_(blocks[1])
            reader.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(reader):
            copies.append(blocks[0][:100].clone())
            blocks[0].record_stream(reader)
        del blocks
        check_counters()
    torch.cuda.synchronize()
    outcome.damaged += sum(int((copy.cpu() != step).any()) for step, copy in enumerate(copies))


# ---- Training -------------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.embedding = torch.nn.Embedding(100, 32)
        self.layers = torch.nn.ModuleList([layer, torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)])
        self.head = torch.nn.Linear(32, 100)
        self.checkpointed = checkpointed

    def forward(self, tokens: Any) -> Any:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            if self.checkpointed:
                hidden = torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=False)
            else:
                hidden = layer(hidden)
        return torch.nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens.flatten())


def tokens(step: int = 0) -> Any:
    return torch.zeros(2, 16 + 8 * (step % 3), dtype=torch.int64, device="cuda")


# Makes an optimizer of a model's parameters.
Optimizer = Callable[..., Any]
OPTIMIZERS: dict[str, Optimizer] = {
    "foreach": functools.partial(torch.optim.AdamW, foreach=True),
    "fused": functools.partial(torch.optim.AdamW, fused=True),
}


class Training:
    """A model, an optimizer, and the step of both, after which the counters are looked at."""

    def __init__(self, outcome: Outcome, make: Optimizer, checkpointed: bool = False, **options: Any) -> None:
        self.outcome = outcome
        self.model = Model(checkpointed).cuda()
        self.optimizer = make(self.model.parameters(), **options)

    def step(self, batch: Any) -> None:
        self.model(batch).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.note_counters()

    def note_counters(self) -> None:
        check_counters()
        stats = torch.cuda.memory_stats()
        self.outcome.steps.append((stats["allocation.all.allocated"], stats["allocation.all.current"]))


def eager(outcome: Outcome, make: Optimizer) -> None:
    training = Training(outcome, make)
    for step in range(4):
        training.step(tokens(step))


def checkpointing(outcome: Outcome, make: Optimizer) -> None:
    training = Training(outcome, make, checkpointed=True)
    for step in range(4):
        training.step(tokens(step))


def graph(outcome: Outcome, make: Optimizer) -> None:
    training = Training(outcome, make, capturable=True)
    batch = tokens()
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(2):
            training.step(batch)
    main.wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        training.step(batch)
    # PyTorch sets the generator's seed on the capture's stream, and orders no replay after that.
    torch.cuda.synchronize()
    for step in range(3):
        batch.copy_(torch.zeros_like(batch, device="cpu"))
        tokens(step).add_(1)
        captured.replay()
        training.note_counters()
    torch.cuda.synchronize()


def prefetching(outcome: Outcome, make: Optimizer) -> None:
    """Batches come on a stream of their own, one step ahead."""
    training = Training(outcome, make)
    main, copies = torch.cuda.current_stream(), torch.cuda.Stream()

    def fetch(step: int) -> Any:
        host = torch.zeros(2, 16 + 8 * (step % 3), dtype=torch.int64).pin_memory()
        with torch.cuda.stream(copies):
            return host.cuda(non_blocking=True)

    following = fetch(0)
    for step in range(5):
        batch, following = following, fetch(step + 1)
        main.wait_stream(copies)
        batch.record_stream(main)
        training.step(batch)


def pooled(outcome: Outcome, make: Optimizer) -> None:
    training = Training(outcome, make)
    pool = torch.cuda.MemPool()
    for step in range(3):
        with torch.cuda.use_mem_pool(pool):
            batch = tokens(step)
            training.step(batch)
        training.step(batch)
        del batch


TRAININGS = (eager, checkpointing, graph, prefetching, pooled)


def all_trainings(outcome: Outcome) -> None:
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    for training in TRAININGS:
        for optimizer, make in OPTIMIZERS.items():
            torch.manual_seed(0)
            torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
            training(outcome, make)
            events = torch.cuda.memory._snapshot()["device_traces"][0]
            torch.cuda.memory._record_memory_history(None)
            outcome.requests[f"{training.__name__}, {optimizer}"] = [
                (event["action"], event["size"]) for event in events if event["action"] in ("alloc", "free_requested")
            ]
            check_counters()


# ---- Tests ----------------------------------------------------------------------------------------------------------


class Races(unittest.TestCase):
    def outcomes(self, program: Program, allocator: str, device: str = "capacity:4GiB") -> list[Outcome]:
        found = []
        for seed in range(SEEDS):
            outcome = run(program, allocator, seed, device)
            self.assertEqual(outcome.failure, "", f"{allocator}, seed {seed}")
            self.assertGreater(outcome.touched, 0)
            found.append(outcome)
        return found

    def test_record_stream_is_enough(self) -> None:
        for allocator in ALLOCATORS:
            for seed, outcome in enumerate(self.outcomes(shared_with_record, allocator)):
                self.assertEqual((outcome.reports, outcome.damaged), ([], 0), f"{allocator}, seed {seed}")

    def test_memory_that_changes_streams_is_waited_for(self) -> None:
        for allocator in ALLOCATORS:
            for seed, outcome in enumerate(self.outcomes(crowd_the_device, allocator, "capacity:64MiB")):
                self.assertEqual((outcome.reports, outcome.damaged), ([], 0), f"{allocator}, seed {seed}")

    def test_a_forgotten_record_stream_is_reported(self) -> None:
        for allocator in ALLOCATORS:
            outcomes = self.outcomes(shared_without_record, allocator)
            self.assertTrue(any(outcome.reports for outcome in outcomes), allocator)
            self.assertTrue(any("race" in report for report in outcomes[0].reports), allocator)
            # Late execution is real: what ran in the wrong order is in the bytes.
            self.assertTrue(any(outcome.damaged for outcome in outcomes), allocator)

    def test_training(self) -> None:
        wanted: Outcome | None = None
        for allocator in ALLOCATORS:
            for seed, outcome in enumerate(self.outcomes(all_trainings, allocator)):
                where = f"{allocator}, seed {seed}"
                self.assertEqual(outcome.reports, [], where)
                wanted = wanted or outcome
                self.assertEqual(len(outcome.requests), len(TRAININGS) * len(OPTIMIZERS))
                for training, requests in outcome.requests.items():
                    self.assertGreater(len(requests), 200)
                    self.assertEqual(requests, wanted.requests[training], f"{training}, {where}")
                self.assertEqual(outcome.steps, wanted.steps, where)


if __name__ == "__main__":
    unittest.main()
