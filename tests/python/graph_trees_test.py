"""The graph trees of torch.compile on PyTorch's own allocator and on Spillway, on the late simulated device.

Graphs that were recorded one after the other share a pool. When another function is to be recorded behind replays, the
tree has the allocator put the pool back to what was live at the end of the graph replayed last. What that did not bring
back would be given to the new graph: its work would then be in the bytes of tensors that live. So outputs are copies
of a number, and each must still be that number at the end of its step.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from on_seeds import ALLOCATORS, SEEDS, Outcome, Program, check_counters, run, torch

dynamo: Any = importlib.import_module("torch._dynamo")

COUNT = 1 << 16  # of numbers in a source: 512 KiB


def inductor_module(name: str) -> Any:
    """Imported late: some ask for the device, which must not be before the fork."""
    return importlib.import_module("torch._inductor." + name)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, backend="cudagraphs", **options)


@contextlib.contextmanager
def watched(outcome: Outcome, program: str) -> Iterator[None]:
    """Notes what is asked of the allocator, but for putting pools back: natively that allocates whole segments."""
    outcome.requests[program] = []
    restore = torch._C._cuda_setCheckpointPoolState

    def events() -> list[Any]:
        found: list[Any] = torch.cuda.memory._snapshot()["device_traces"][0]
        return found

    noted = 0

    def note() -> None:
        nonlocal noted
        new = [event for event in events()[noted:] if event["action"] == "alloc"]
        outcome.requests[program] += [(event["action"], event["size"]) for event in new]

    def restore_unnoticed(*arguments: Any) -> None:
        nonlocal noted
        note()
        restore(*arguments)
        check_counters()
        noted = len(events())

    torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
    torch._C._cuda_setCheckpointPoolState = restore_unnoticed
    try:
        yield
    finally:
        torch._C._cuda_setCheckpointPoolState = restore
    note()
    manager = inductor_module("cudagraph_trees").get_manager(0, create_if_none_exists=False)
    outcome.restored += manager.debug_checkpointing_counter
    outcome.recorded += manager.new_graph_id().id
    torch.cuda.memory._record_memory_history(None)
    torch._dynamo.reset()
    check_counters()


# ---- Branches -------------------------------------------------------------------------------------------------------


class Source(torch.nn.Module):  # type: ignore[misc]
    """The graph reads its buffer, so that what is written there goes through every replay."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.zeros(COUNT, dtype=torch.int64))

    def forward(self) -> Any:
        return self.numbers.clone(), self.numbers[: COUNT // 3].clone()


def copy(numbers: Any) -> Any:
    return (numbers.clone(),)


def copy_of_copies(numbers: Any) -> Any:
    """Smaller and larger than what was freed before."""
    part = numbers[: len(numbers) // 2].clone()
    return numbers.clone().clone(), part[:100].clone(), part[: len(part) // 2].clone()


def copy_in_pieces(numbers: Any) -> Any:
    return tuple(numbers[: len(numbers) // share].clone() for share in (2, 3, 5, 7))


def branches(outcome: Outcome) -> None:
    """Each step replays or records one path from the root, chosen by chance; some of its outputs die on the way."""
    dice = random.Random(1)
    source = Source().cuda()
    start = compiled(source)
    functions = [compiled(function, dynamic=False) for function in (copy, copy_of_copies, copy_in_pieces)]
    for step in range(60):
        torch.compiler.cudagraph_mark_step_begin()
        source.numbers.copy_(torch.full((COUNT,), step))
        outputs = list(start())
        for _ in range(dice.randrange(4)):
            outputs += dice.choice(functions)(outputs[dice.randrange(2)])
            if len(outputs) > 3:
                del outputs[dice.randrange(2, len(outputs))]
        outcome.damaged += sum(int((output.cpu() != step).any()) for output in outputs)
        del outputs


def sizes(outcome: Outcome) -> None:
    """One function for every size: the tree records a graph for each."""
    dice = random.Random(2)
    source = Source().cuda()
    start = compiled(source)
    function = compiled(copy_of_copies, dynamic=True)
    for step in range(30):
        torch.compiler.cudagraph_mark_step_begin()
        source.numbers.copy_(torch.full((COUNT,), step))
        outputs = list(start())
        for _ in range(dice.randrange(3)):
            outputs += function(outputs[0][: 1000 * dice.randrange(1, 4)])
        outcome.damaged += sum(int((output.cpu() != step).any()) for output in outputs)
        del outputs


# ---- Training -------------------------------------------------------------------------------------------------------


def training(outcome: Outcome) -> None:
    """Forward and backward graphs of batches of several sizes; the last layer is left out now and then."""
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).cuda()
    body = compiled(model[:2], dynamic=False)
    head = compiled(lambda hidden: torch.nn.functional.relu(model[2](hidden)).sum(), dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        hidden = body(torch.zeros(8 * (1 + step % 2), 64, device="cuda"))
        loss = head(hidden) if step % 5 != 4 else hidden.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del hidden, loss


def reduced_overhead(outcome: Outcome) -> None:
    """The compiler's own graphs, of functions that call libraries only: nothing has to be compiled for the device."""
    inductor_module("scheduler").has_triton = lambda: True
    weight = torch.zeros(128, 128, device="cuda")
    first = torch.compile(lambda value: torch.mm(value, weight), mode="reduce-overhead")
    second = torch.compile(lambda value: torch.mm(torch.mm(value, weight), weight), mode="reduce-overhead")
    for step in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        value = first(torch.zeros(128, 128, device="cuda"))
        others = [second(value)] if step % 4 == 2 else []
        if step % 5 > 2:
            others.append(first(value))
        del value, others


# ---- Tests ----------------------------------------------------------------------------------------------------------

PROGRAMS = (branches, sizes, training, reduced_overhead)


def all_programs(outcome: Outcome) -> None:
    # After each restoration and recording, what is live in the pool must be what the tree thinks.
    checks = inductor_module("config").triton
    checks.slow_path_cudagraph_asserts = checks.fast_path_cudagraph_asserts = True
    torch.compiler.config.force_disable_caches = True
    dynamo.config.recompile_limit = 64
    for program in PROGRAMS:
        torch.manual_seed(0)
        with watched(outcome, program.__name__):
            program(outcome)


class GraphTrees(unittest.TestCase):
    def outcomes(self, program: Program) -> dict[str, list[Outcome]]:
        found: dict[str, list[Outcome]] = {}
        for allocator in ALLOCATORS:
            for seed in range(max(2, SEEDS // 10)):
                outcome = run(program, allocator, seed, "capacity:4GiB")
                self.assertEqual(outcome.failure, "", f"{allocator}, seed {seed}")
                self.assertEqual((outcome.reports, outcome.damaged), ([], 0), f"{allocator}, seed {seed}")
                self.assertGreater(outcome.touched, 0)
                found.setdefault(allocator, []).append(outcome)
        return found

    def test_paths_are_recorded_behind_replays(self) -> None:
        found = self.outcomes(all_programs)
        wanted = found["native"][0]
        self.assertGreater(wanted.restored, 20)
        self.assertGreater(wanted.recorded, 50)
        for allocator, outcomes in found.items():
            for seed, outcome in enumerate(outcomes):
                where = f"{allocator}, seed {seed}"
                self.assertEqual((outcome.restored, outcome.recorded), (wanted.restored, wanted.recorded), where)
                for program in PROGRAMS:
                    name = program.__name__
                    self.assertGreater(len(wanted.requests[name]), 20, name)
                    self.assertEqual(outcome.requests[name], wanted.requests[name], f"{name}, {where}")


if __name__ == "__main__":
    unittest.main()
