"""Optimizer state and parameters that are on the device only while they are used, with torch.compile."""

from __future__ import annotations

import functools
import importlib
import unittest
import warnings
from typing import Any

import spillway
from moving_test import OPTIMIZERS, Model, backward, batch, damaged, mark, parameters_of
from on_seeds import Outcome, Program, torch
from spilling import every_seed

importlib.import_module("torch._dynamo.backends.debugging")  # once for all children


def compiled(outcome: Outcome, when: str, backend: str = "aot_eager") -> None:
    """The hooks run between graphs, also where those were made before them."""
    warnings.filterwarnings("ignore", "Using `torch.compile")  # of global hooks, after a step that is skipped
    model = Model().cuda()
    mark(parameters_of(model), 3)
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    compile_it = functools.partial(torch.compile, backend=backend)
    run: Any = compile_it(model) if when in ("before", "used before") else model
    if when == "used before":
        backward(run)
    if when == "of another time":
        handle = spillway.offload_parameters(model, 0, optimizer=optimizer)
        run = compile_it(model)
        backward(run)
        handle.remove()
    handle = spillway.offload_parameters(model, 0, optimizer=optimizer)
    state = spillway.offload_optimizer(optimizer)
    if when == "layers":
        for block in model.blocks:
            block.compile(backend=backend)
    if when == "after":
        run = compile_it(model)
    for step in range(4):
        backward(run)
        if step != 2:
            optimizer.step()
        optimizer.zero_grad()
    for tag in handle.tags:
        assert spillway.regions()[tag]["restores"] >= 6, spillway.regions()
    with handle.resident():
        outcome.damaged += damaged(parameters_of(model), 3)
    state.remove()
    handle.remove()
    backward(run)


def compiled_whole(outcome: Outcome) -> None:
    """With fullgraph=True PyTorch says what stands in its way."""
    model = Model().cuda()
    spillway.offload_parameters(model, 0)
    try:
        backward(torch.compile(model, backend="aot_eager", fullgraph=True))
    except torch._dynamo.exc.Unsupported as problem:
        assert "ParameterOffload" in str(problem), problem
    else:
        raise AssertionError("not refused")
    backward(model)


def a_function_is_compiled_whole(outcome: Outcome) -> None:
    """While the state waits for a step that was skipped; it is there for the next."""
    warnings.filterwarnings("ignore", "Using `torch.compile")
    model = Model().cuda()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    state = spillway.offload_optimizer(optimizer)
    for step in range(4):
        torch.compiler.reset()  # it is compiled with the hook that waits, and without
        run = torch.compile(lambda x: model(x).sum(), backend="aot_eager", fullgraph=True)
        run(batch()).backward()
        if step % 2 == 0:
            optimizer.step()
        optimizer.zero_grad()
    assert state.tag in spillway.regions()
    state.remove()


PROGRAMS: list[Program] = [
    *(functools.partial(compiled, when=when) for when in ("before", "used before", "of another time", "layers")),
    *(functools.partial(compiled, when="after", backend=backend) for backend in ("eager", "aot_eager")),
    compiled_whole,
    a_function_is_compiled_whole,
]

OnEverySeed = every_seed(PROGRAMS)

if __name__ == "__main__":
    unittest.main()
