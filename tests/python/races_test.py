"""PyTorch programs on PyTorch's own allocator and on Spillway, on the late simulated device: no race is reported, each
allocator is asked the same, and a program that forgets record_stream() is found out.
"""

from __future__ import annotations

import unittest
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


def train(model: Any, optimizer: Any, batch: Any) -> None:
    model(batch).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    check_counters()


def adamw(model: Any, **options: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), **options)


def foreach() -> None:
    model = Model().cuda()
    optimizer = adamw(model, foreach=True)
    for step in range(4):
        train(model, optimizer, tokens(step))


def fused() -> None:
    model = Model().cuda()
    optimizer = adamw(model, fused=True)
    for step in range(4):
        train(model, optimizer, tokens(step))


def checkpointing() -> None:
    model = Model(checkpointed=True).cuda()
    optimizer = adamw(model)
    for step in range(4):
        train(model, optimizer, tokens(step))


def graph() -> None:
    model = Model().cuda()
    optimizer = adamw(model, capturable=True)
    batch = tokens()
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(2):
            train(model, optimizer, batch)
    main.wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        train(model, optimizer, batch)
    # PyTorch sets the generator's seed on the capture's stream, and orders no replay after that.
    torch.cuda.synchronize()
    for step in range(3):
        batch.copy_(torch.zeros_like(batch, device="cpu"))
        tokens(step).add_(1)
        captured.replay()
        check_counters()
    torch.cuda.synchronize()


def prefetching() -> None:
    """Batches come on a stream of their own, one step ahead."""
    model = Model().cuda()
    optimizer = adamw(model)
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
        train(model, optimizer, batch)


def pooled() -> None:
    model = Model().cuda()
    optimizer = adamw(model)
    pool = torch.cuda.MemPool()
    for step in range(3):
        with torch.cuda.use_mem_pool(pool):
            batch = tokens(step)
            train(model, optimizer, batch)
        train(model, optimizer, batch)
        del batch


TRAININGS = (foreach, fused, checkpointing, graph, prefetching, pooled)


def all_trainings(outcome: Outcome) -> None:
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    for training in TRAININGS:
        torch.manual_seed(0)
        torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
        training()
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(None)
        outcome.requests[training.__name__] = [event["size"] for event in events if event["action"] == "alloc"]
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
        wanted: dict[str, list[int]] = {}
        for allocator in ALLOCATORS:
            for seed, outcome in enumerate(self.outcomes(all_trainings, allocator)):
                where = f"{allocator}, seed {seed}"
                self.assertEqual(outcome.reports, [], where)
                wanted = wanted or outcome.requests
                for training in TRAININGS:
                    sizes = outcome.requests[training.__name__]
                    self.assertGreater(len(sizes), 100)
                    self.assertEqual(sizes, wanted[training.__name__], f"{training.__name__}, {where}")


if __name__ == "__main__":
    unittest.main()
