"""Optimizer state and parameters that are on the device only while they are used, on the late simulated device."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import spillway
from on_seeds import Outcome, Program, check_counters, torch
from spilling import configure, every_seed, on_disk, refused
from spillway._pytorch.annotate import tensors

checkpoint: Any = torch.utils.checkpoint.checkpoint
WIDTH = 512
COUNT = 6


class Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        return self.linear(x) * self.scale


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(COUNT))
        self.checkpointed = checkpointed

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def batch() -> Any:
    return torch.zeros(8, WIDTH, device="cuda")


def backward(model: Any) -> None:
    model(batch()).sum().backward()


def mark(held: list[Any], value: int) -> None:
    with torch.no_grad():
        for number, tensor in enumerate(held):
            tensor.fill_(value + number)


def damaged(held: list[Any], value: int) -> int:
    return sum(int((tensor.cpu() != value + number).any()) for number, tensor in enumerate(held))


# ---- Optimizers

OPTIMIZERS = {
    "foreach": functools.partial(torch.optim.AdamW, foreach=True),
    "fused": functools.partial(torch.optim.AdamW, fused=True),
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
}


def state_of(optimizer: Any) -> list[Any]:
    return [each for each in tensors(torch, list(optimizer.state.values())) if each.is_cuda]


def optimizer_state_is_away_between_steps(outcome: Outcome, name: str, to: str = "host") -> None:
    model = Model().cuda()
    optimizer = OPTIMIZERS[name](model.parameters())
    handle = spillway.offload_optimizer(optimizer, to=to)
    places: list[int] = []
    for step in range(4):
        for _ in range(2):  # gradients of two micro-batches
            backward(model)
        optimizer.step()
        optimizer.zero_grad()
        held = state_of(optimizer)
        size = sum(tensor.nbytes for tensor in held)
        assert spillway.regions()[handle.tag]["device_bytes"] == 0, spillway.regions()
        assert spillway.regions()[handle.tag][f"{to}_bytes"] >= size > 0
        assert not places or places == [tensor.data_ptr() for tensor in held]
        places = [tensor.data_ptr() for tensor in held]
        # The model computes meanwhile.
        model(batch())
        with handle.resident():
            # The simulated optimizer writes nothing.
            outcome.damaged += damaged(held, 10 * step) if step else 0
            mark(held, 10 * (step + 1))
        check_counters()
    handle.remove()
    outcome.damaged += damaged(state_of(optimizer), 40)
    assert handle.tag not in spillway.regions()
    backward(model)
    optimizer.step()


def checkpoints_of_an_optimizer(outcome: Outcome) -> None:
    model, optimizer, handle = with_its_state_away()
    backward(model)
    optimizer.step()
    with handle.resident():
        mark(state_of(optimizer), 5)
    saved = optimizer.state_dict()
    outcome.damaged += damaged(state_of(optimizer), 5)
    copies = {key: {name: each.clone() for name, each in row.items()} for key, row in saved["state"].items()}
    with handle.resident():
        mark(state_of(optimizer), 50)
    backward(model)
    optimizer.step()
    optimizer.load_state_dict({**saved, "state": copies})
    assert spillway.regions()[handle.tag]["device_bytes"] == 0
    with handle.resident():
        outcome.damaged += damaged(state_of(optimizer), 5)
    backward(model)
    optimizer.step()
    # A step that fails leaves the state where the next finds it.
    hook = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    for fails in (True, False):
        backward(model)
        try:
            optimizer.step()
        except ZeroDivisionError:
            assert fails
        hook.remove()


def with_its_state_away() -> tuple[Any, Any, Any]:
    model = Model().cuda()
    optimizer = OPTIMIZERS["foreach"](model.parameters())
    return model, optimizer, spillway.offload_optimizer(optimizer)


def no_room_for_the_state(outcome: Outcome) -> None:
    configure("pinned_limit:1MiB")
    model, optimizer, handle = with_its_state_away()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            backward(model)
            optimizer.step()
    texts = [str(each.message) for each in caught if each.category is spillway.SpillwayWarning]
    assert len(texts) == 1 and handle.tag in texts[0], texts
    assert spillway.regions()[handle.tag]["device_bytes"] > 0


def the_first_parameter_is_frozen(outcome: Outcome) -> None:
    model = Model().cuda()
    model.first.requires_grad_(False)
    optimizer = OPTIMIZERS["foreach"](model.parameters())
    handle = spillway.offload_optimizer(optimizer)
    for step in range(3):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
        assert spillway.regions()[handle.tag]["device_bytes"] == 0, step
        with handle.resident():
            outcome.damaged += damaged(state_of(optimizer), step) if step else 0
            mark(state_of(optimizer), step + 1)
    # As the last gradient comes in, the state is on its way already.
    restores = spillway.regions()[handle.tag]["restores"]
    backward(model)
    spillway.restore(handle.tag)
    assert spillway.regions()[handle.tag]["restores"] == restores + 1
    handle.remove()


def a_step_is_skipped(outcome: Outcome) -> None:
    """As GradScaler does: the next forward pass is without the state, and the next step finds it on its way."""
    model, optimizer, handle = with_its_state_away()
    in_forward: list[int] = []

    def row() -> dict[str, int]:
        return spillway.regions()[handle.tag]

    def begin_step() -> None:
        for _ in range(2):
            backward(model)

    begin_step()
    optimizer.step()
    optimizer.zero_grad()
    with handle.resident():
        mark(state_of(optimizer), 3)
    model.blocks[0].register_forward_hook(lambda *_: in_forward.append(row()["device_bytes"]))
    for _ in range(2):
        begin_step()
        optimizer.zero_grad()
    begin_step()
    assert in_forward == [0] * 6, in_forward
    # It comes in the background.
    end = time.monotonic() + 60
    while row()["device_bytes"] == 0:
        assert time.monotonic() < end, row()
        time.sleep(0.01)
    # What was asked for meanwhile stays.
    optimizer.state_dict()
    with torch.no_grad():
        model(batch())
    outcome.damaged += damaged(state_of(optimizer), 3)
    optimizer.step()
    assert row()["device_bytes"] == 0, row()
    # Where it finds no room no forward pass complains.
    begin_step()
    with handle.resident(), torch.no_grad():
        model(batch())
        outcome.damaged += damaged(state_of(optimizer), 3)
    others = fill_the_device(0)
    restores = row()["restores"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle._note_gradient(None)
    assert row()["restores"] == restores
    del others
    handle.remove()
    assert not torch.nn.modules.module._global_forward_pre_hooks


def modules_run_elsewhere(outcome: Outcome) -> None:
    """While the state is on its way to a step: on another thread, and in a worker that was forked (DataLoader)."""
    model, optimizer, handle = with_its_state_away()
    for _ in range(2):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
    with handle.resident():
        mark(state_of(optimizer), 3)
    backward(model)
    elsewhere = torch.nn.Identity()
    thread = threading.Thread(target=elsewhere, args=(1,))
    thread.start()
    thread.join()
    worker = os.fork()
    if worker == 0:
        os._exit(0 if elsewhere(1) == 1 else 1)
    assert os.waitpid(worker, 0)[1] == 0
    # Nobody ended the way: it is there without being asked for again.
    end = time.monotonic() + 60
    while spillway.regions()[handle.tag]["device_bytes"] == 0:
        assert time.monotonic() < end, spillway.regions()
        time.sleep(0.01)
    optimizer.state_dict()
    outcome.damaged += damaged(state_of(optimizer), 3)
    optimizer.step()
    handle.remove()


def fill_the_device(but_bytes: int) -> list[Any]:
    """Whatever else is on it, which differs between releases of PyTorch."""
    piece_bytes = 2 << 20
    held: list[Any] = []
    with contextlib.suppress(torch.OutOfMemoryError):
        while True:
            held.append(torch.empty(piece_bytes, dtype=torch.uint8, device="cuda"))
    del held[: but_bytes // piece_bytes]
    return held


def no_room_to_begin_undoes_everything(outcome: Outcome) -> None:
    """For want of a second copy of one tensor, while the others have moved."""
    model = Model().cuda()
    optimizer = OPTIMIZERS["foreach"](model.parameters())
    backward(model)
    optimizer.step()
    large = torch.full((50 << 20,), 7, dtype=torch.uint8, device="cuda")
    optimizer.state[model.blocks[5].linear.bias]["large"] = large
    model.blocks[5].register_buffer("large", large.clone())
    others = fill_the_device(40 << 20)
    held, parameters = state_of(optimizer), parameters_of(model)
    mark(held, 3)
    mark(parameters, 40)
    for offload_it in (lambda: offload(optimizer), lambda: spillway.offload_parameters(model, optimizer=optimizer)):
        try:
            offload_it()
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("there was room")
        assert spillway.regions() == {}
        outcome.damaged += damaged(held, 3) + damaged(parameters, 40)
    del others
    # None of it left a hook.
    backward(model)
    optimizer.step()
    optimizer.state_dict()
    assert spillway.regions() == {}


# ---- Parameters


def parameters_of(model: Any) -> list[Any]:
    return [*model.parameters(), *model.buffers()]


def parameters_are_here_while_they_are_used(outcome: Outcome, checkpointed: bool, to: str = "host") -> None:
    model = Model(checkpointed).cuda()
    optimizer = OPTIMIZERS["foreach"](model.parameters())
    mark(parameters_of(model), 3)
    before = torch.cuda.memory_allocated()
    handle = spillway.offload_parameters(model, 0.3, optimizer=optimizer, to=to)
    assert len(handle.tags) == 4
    assert before - torch.cuda.memory_allocated() >= 4 * 4 * WIDTH * WIDTH
    with handle.resident():
        places = [tensor.data_ptr() for tensor in parameters_of(model)]
    most = 0
    for block in model.blocks:
        block.register_forward_hook(lambda *_: note())

    def note() -> None:
        nonlocal most
        most = max(most, sum(row["device_bytes"] > 0 for row in spillway.regions().values()))

    for step in range(3):
        # What the simulated kernels do not write must be what it was.
        backward(model)
        assert all(parameter.grad is not None for parameter in model.parameters())
        if step > 0:
            optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(2):
                model(batch())
        check_counters()
    assert most <= 2, most
    with handle.resident():
        outcome.damaged += damaged(parameters_of(model), 3)
        assert places == [tensor.data_ptr() for tensor in parameters_of(model)]
    # A copy of the model's state is whole, and can be loaded.
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model(batch())
    model.load_state_dict(state)
    backward(model)
    handle.remove()
    outcome.damaged += damaged(parameters_of(model), 3)
    assert spillway.regions() == {}
    backward(model)


@dataclass
class Answer:
    hidden: Any


class Opaque:
    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden


class Wrapped(torch.nn.Module):  # type: ignore[misc]
    """A layer whose output is in an object of `kind`."""

    def __init__(self, block: Any, kind: Any) -> None:
        super().__init__()
        self.block = block
        self.kind = kind

    def forward(self, x: Any) -> Any:
        return self.kind(self.block(getattr(x, "hidden", x)))


class WrappedModel(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Wrapped(Block(), kind) for _ in range(COUNT))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x.hidden


def on_device() -> int:
    """How many layers are."""
    torch.cuda.synchronize()
    return sum(row["device_bytes"] > 0 for row in spillway.regions().values())


@contextlib.contextmanager
def says_once(*texts: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    said = [str(each.message) for each in caught if each.category is spillway.SpillwayWarning]
    assert len(said) == len(texts) and all(text in found for text, found in zip(texts, said, strict=True)), said


class Biased(torch.nn.Module):  # type: ignore[misc]
    """A layer that passes on what the first has made for all, and the outputs of those before it, as T5 does."""

    def __init__(self, tag: Callable[[], str]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.relative = torch.nn.Parameter(torch.zeros(WIDTH))
        self.tag = tag

    def forward(self, x: Any, *, bias: Any = None, before: Any = ()) -> Any:
        y = self.linear(x)
        y.register_hook(self.is_here)
        bias = self.relative * 1.0 if bias is None else bias
        return torch.tanh(y + bias), bias, (*before, x)

    def is_here(self, _: Any) -> None:
        assert spillway.regions()[self.tag()]["device_bytes"] > 0, spillway.regions()


def outputs_that_are_passed_on(outcome: Outcome) -> None:
    """A tensor goes backward in the layer that made it, however many have returned it since."""
    layers = torch.nn.ModuleList(
        Biased(functools.partial(lambda number: handle.tags[number], number)) for number in range(COUNT)
    ).cuda()
    mark(parameters_of(layers), 3)
    handle = spillway.offload_parameters(layers, 0, layers=list(layers))
    with says_once():
        for _ in range(3):
            x, bias = batch().requires_grad_(), None
            hidden: tuple[Any, ...] = ()
            for layer in layers:
                x, bias, hidden = layer(x, bias=bias, before=hidden)
            (x.sum() + sum(each.sum() for each in hidden)).backward()
    assert on_device() <= 2, on_device()
    handle.remove()
    outcome.damaged += damaged(parameters_of(layers), 3)


def outputs_of_any_kind(outcome: Outcome) -> None:
    """What a backward pass cannot announce stays; frozen layers without a graph do not."""
    for kind, texts in ((Answer, []), (Opaque, ["has no tensor to go backward from"])):
        model = WrappedModel(kind).cuda()
        mark(parameters_of(model), 3)
        handle = spillway.offload_parameters(model, 0)
        with says_once(), torch.no_grad():
            model(batch())
        with says_once(*texts):
            for _ in range(3):
                backward(model)
        assert on_device() == (COUNT if texts else 1), on_device()
        with handle.resident():
            outcome.damaged += damaged(parameters_of(model), 3)
        handle.remove()
    model = Model().cuda()
    model.requires_grad_(False)
    handle = spillway.offload_parameters(model, 0)
    with says_once():
        model(batch())
    assert on_device() <= 2
    handle.remove()


def gradients_of_gradients(outcome: Outcome, checkpointed: bool) -> None:
    """Layers stay from then on: there is no telling when they are read."""
    model = Model(checkpointed).cuda()
    mark(parameters_of(model), 3)
    handle = spillway.offload_parameters(model, 0)
    x = batch().requires_grad_()
    with says_once("create_graph=True"):
        for _ in range(2):
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            gradient.square().sum().backward()
    assert on_device() == COUNT, on_device()
    outcome.damaged += damaged(parameters_of(model), 3)
    handle.remove()
    handle = spillway.offload_parameters(model, 0)
    with says_once():
        backward(model)
    handle.remove()


def other_ways_backward(outcome: Outcome) -> None:
    """Twice through one graph, after other forward passes, layers that run twice, checkpoints of the older kind."""
    model = Model().cuda()
    mark(parameters_of(model), 3)
    handle = spillway.offload_parameters(model, 0)
    with says_once():
        for _ in range(2):
            loss = model(batch()).sum()
            loss.backward(retain_graph=True)
            with torch.no_grad():
                model(batch())
            loss.backward()
            model(model(batch())).sum().backward()
            x = batch().requires_grad_()
            for block in model.blocks:
                x = checkpoint(block, x, use_reentrant=True)
            x.sum().backward()
    assert on_device() <= 2, on_device()
    with handle.resident():
        outcome.damaged += damaged(parameters_of(model), 3)
    handle.remove()


def a_layer_that_is_listed_often(outcome: Outcome) -> None:
    """As ALBERT runs one layer again and again."""
    block = Block()
    model = Model()
    model.blocks = torch.nn.ModuleList([block] * COUNT)
    model.cuda()
    mark(parameters_of(model), 3)
    handle = spillway.offload_parameters(model, 0)
    assert len(handle.tags) == 1, handle.tags
    for _ in range(3):
        backward(model)
    handle.remove()
    outcome.damaged += damaged(parameters_of(model), 3)


def shared_parameters_stay(outcome: Outcome) -> None:
    model = Model().cuda()
    model.blocks[5].linear.weight = model.first.weight
    spillway.offload_parameters(model, 0)
    backward(model)
    assert model.first.weight.data_ptr() == model.blocks[5].linear.weight.data_ptr()
    with torch.no_grad():
        model.first.weight.fill_(7)
    outcome.damaged += int((model.blocks[5].linear.weight.detach().cpu() != 7).any())


def mistakes_are_one_sentence(outcome: Outcome) -> None:
    model = Model().cuda()
    refused("keep=1.5 is not allowed; allowed: 0 to 1", parameters, model, 1.5)
    refused("has no torch.nn.ModuleList", parameters, model.first)
    nested = [model.blocks[0], model.blocks[0].linear]
    refused("layers= has 'blocks.0.linear', which is in 'blocks.0'", parameters, model, 0, layers=nested)
    optimizer = OPTIMIZERS["foreach"](model.parameters())
    refused("'nowhere' is not known; allowed: host, disk", lambda: offload(optimizer, to="nowhere"))
    handle: Any = spillway.offload_parameters(model, 0.5)
    inner = [block.linear for block in model.blocks[-len(handle.tags) :]]
    refused(f"] is moved by region '{handle.tags[0]}' already: remove() that", parameters, model, 0, layers=inner)
    # It undid what it had done.
    assert [*spillway.regions()] == handle.tags, spillway.regions()
    torch.cuda.synchronize()
    refused("offload_parameters() cannot move memory while a stream is captured", capture, model)
    handle.remove()
    handle = spillway.offload_optimizer(optimizer)
    backward(model)
    optimizer.step()
    torch.cuda.synchronize()
    refused("offload_optimizer() cannot move memory while a stream is captured", capture, optimizer.step)


def capture(function: Any) -> None:
    arguments = [batch()] if isinstance(function, torch.nn.Module) else []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        function(*arguments)


offload = spillway.offload_optimizer
parameters = spillway.offload_parameters


PROGRAMS: list[Program] = [
    *(functools.partial(optimizer_state_is_away_between_steps, name=name) for name in OPTIMIZERS),
    on_disk(functools.partial(optimizer_state_is_away_between_steps, name="foreach", to="disk")),
    checkpoints_of_an_optimizer,
    no_room_for_the_state,
    the_first_parameter_is_frozen,
    a_step_is_skipped,
    modules_run_elsewhere,
    no_room_to_begin_undoes_everything,
    functools.partial(parameters_are_here_while_they_are_used, checkpointed=False),
    functools.partial(parameters_are_here_while_they_are_used, checkpointed=True),
    on_disk(functools.partial(parameters_are_here_while_they_are_used, checkpointed=False, to="disk")),
    outputs_that_are_passed_on,
    outputs_of_any_kind,
    functools.partial(gradients_of_gradients, checkpointed=False),
    functools.partial(gradients_of_gradients, checkpointed=True),
    other_ways_backward,
    a_layer_that_is_listed_often,
    shared_parameters_stay,
    mistakes_are_one_sentence,
]


OnEverySeed = every_seed(PROGRAMS)

if __name__ == "__main__":
    unittest.main()
