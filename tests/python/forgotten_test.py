"""Models and optimizers whose memory is moved, and that are dropped without a word: all of it is free again."""

from __future__ import annotations

import contextlib
import functools
import gc
import unittest
import weakref
from typing import Any

import spillway
from on_seeds import Outcome, Program, torch
from spilling import every_seed

WIDTH = 512
COUNT = 6


def layers() -> Any:
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, device="cuda") for _ in range(COUNT)))


def offloaded(kind: str) -> tuple[Any, Any, Any]:
    """A model, its optimizer and the handle."""
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    if kind == "optimizer":
        return model, optimizer, spillway.offload_optimizer(optimizer)
    if kind == "activations":
        return model, optimizer, spillway.offload_activations(model, min_bytes=1 << 10)
    return model, optimizer, spillway.offload_parameters(model, keep=0.0, layers=list(model), optimizer=optimizer)


def train(model: Any, optimizer: Any, steps: int = 2) -> None:
    for _ in range(steps):
        model(torch.zeros(64, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def held() -> dict[str, int]:
    torch.cuda.synchronize()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "regions": len(spillway.regions()),
        "host": spillway.tier_stats()["region_host_bytes"] + spillway.tier_stats()["stash_host_bytes"],
    }


@contextlib.contextmanager
def leaves_nothing() -> Any:
    before = held()
    yield
    after = held()
    assert after == before, (before, after)


# What is freed has to be so without the garbage collector, where PyTorch's own is.
@contextlib.contextmanager
def without_collector() -> Any:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def dropped(outcome: Outcome, kind: str) -> None:
    train(*offloaded(kind)[:2])  # what libraries keep is there now
    gc.collect()
    for _ in range(3):
        with leaves_nothing():
            model, optimizer, handle = offloaded(kind)
            train(model, optimizer)
            alive = weakref.ref(handle)
            del model, optimizer, handle
            gc.collect()
            assert alive() is None
    outcome.touched += 1


def the_optimizer_is_freed_at_once(outcome: Outcome) -> None:
    train(*offloaded("optimizer")[:2])
    gc.collect()
    with without_collector(), leaves_nothing():
        model, optimizer, handle = offloaded("optimizer")
        train(model, optimizer)
        del optimizer, handle, model
    outcome.touched += 1


def the_handle_is_not_kept(outcome: Outcome) -> None:
    """What is on its way goes on as long as what it serves."""
    for kind in ("optimizer", "parameters"):
        model, optimizer, _ = offloaded(kind)
        del _
        gc.collect()
        train(model, optimizer)
        assert spillway.regions(), kind
        assert spillway.tier_stats()["region_host_bytes"] > 0, kind
        del model, optimizer
        gc.collect()
        assert not spillway.regions(), kind
    outcome.touched += 1


def memory_that_lives_on_comes_back(outcome: Outcome) -> None:
    def views() -> list[Any]:
        model, _, handle = offloaded("parameters")
        with torch.no_grad(), handle.resident():
            for number, layer in enumerate(model):
                layer.weight.copy_(torch.full((WIDTH, WIDTH), number + 1.0))
        return [model[1].weight.detach(), model[2].weight.data[3]]

    found = views()
    gc.collect()
    assert not spillway.regions()
    assert [each.cpu().unique().tolist() for each in found] == [[2], [3]]
    del found
    outcome.touched += 1


def a_step_that_fails(outcome: Outcome) -> None:
    """As a search for the largest batch has them: the exception holds frames until it is handled."""
    train(*offloaded("optimizer")[:2])
    gc.collect()

    def trial(kind: str) -> None:
        model, optimizer, handle = offloaded(kind)
        train(model, optimizer)
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")

    for kind in ("optimizer", "parameters", "activations"):
        with leaves_nothing():
            try:
                trial(kind)
            except torch.OutOfMemoryError:
                pass
            else:
                raise AssertionError("there was room for 1 TiB")
            gc.collect()
    outcome.touched += 1


def a_cell_that_runs_again(outcome: Outcome) -> None:
    """Names are bound anew, one by one, while what they were bound to still lives."""
    cell: dict[str, Any] = {}
    sizes = []
    for _ in range(4):
        cell["model"] = layers()
        cell["optimizer"] = torch.optim.AdamW(cell["model"].parameters(), foreach=False)
        cell["state"] = spillway.offload_optimizer(cell["optimizer"])
        cell["parameters"] = spillway.offload_parameters(
            cell["model"], keep=0.5, layers=list(cell["model"]), optimizer=cell["optimizer"]
        )
        train(cell["model"], cell["optimizer"])
        gc.collect()
        sizes.append(held())
    assert sizes[1:] == sizes[:1] * 3, sizes
    outcome.touched += 1


def a_cell_about_the_same_model(outcome: Outcome) -> None:
    """Its handles are dropped, or still bound while it runs again."""
    train(*offloaded("optimizer")[:2])
    gc.collect()
    for binds in (True, False):
        with leaves_nothing():
            model = layers()
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            sizes, bound = [], []
            for keep in (0.5, 0.0, 0.5, 0.5):
                handles = [
                    spillway.offload_optimizer(optimizer),
                    spillway.offload_parameters(model, keep, layers=list(model), optimizer=optimizer),
                    spillway.offload_activations(model, min_bytes=1 << 10),
                ]
                if binds:
                    bound += handles
                del handles
                train(model, optimizer)
                hooks = sum(len(each._forward_pre_hooks) + len(each._forward_hooks) for each in model.modules())
                sizes.append((torch.cuda.memory_allocated(), len(spillway.regions()), hooks))
            assert sizes[0] == sizes[2] == sizes[3], sizes
            del model, optimizer, bound
            gc.collect()
    outcome.touched += 1


PROGRAMS: list[Program] = [
    *(functools.partial(dropped, kind=kind) for kind in ("optimizer", "parameters", "activations")),
    the_optimizer_is_freed_at_once,
    the_handle_is_not_kept,
    memory_that_lives_on_comes_back,
    a_step_that_fails,
    a_cell_that_runs_again,
    a_cell_about_the_same_model,
]

OnEverySeed = every_seed(PROGRAMS)

if __name__ == "__main__":
    unittest.main()
