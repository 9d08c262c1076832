"""Models built on meta that get their memory on the device."""

from __future__ import annotations

import gc
import unittest
from typing import Any

import spillway
from on_seeds import Outcome, torch
from spilling import on_every_seed, refused


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 64)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(64, 2, 128, batch_first=True) for _ in range(2)
        )
        self.head = torch.nn.Linear(64, 100, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = torch.nn.Parameter(torch.ones(64))
        self.register_buffer("positions", torch.arange(64), persistent=False)


def on_meta() -> Any:
    with torch.device("meta"):
        return Model()


def all_gets_memory(outcome: Outcome) -> None:
    """torchtitan#3281: weights were initialised on the host, where a collective of the device waited for ever."""
    model = on_meta()
    wanted = sum(parameter.nbytes for parameter in model.parameters()) + 64 * 8
    done = spillway.materialize(model, "cuda")
    assert done.bytes == wanted, done
    held = [*model.parameters(), *model.buffers()]
    assert all(tensor.is_cuda for tensor in held)
    assert model.head.weight is model.embedding.weight
    assert torch.cuda.memory_allocated() < wanted + (64 << 10)
    # What has no reset is named, and nothing else.
    assert set(done.uninitialised) == {"scale", "positions"}, done
    assert "layers.1.self_attn.in_proj_weight" in done.initialised, done
    assert done.meta == ()
    assert "without values yet: scale, positions" in str(done), str(done)
    # Written by a fill of the device: norms begin with 1, biases with 0.
    outcome.damaged += int((model.layers[0].norm1.weight.detach().cpu() != 1).any())
    outcome.damaged += int((model.layers[1].self_attn.out_proj.bias.detach().cpu() != 0).any())
    assert spillway.materialize(model, "cuda").bytes == 0


def own_initialisation(outcome: Outcome) -> None:
    model = on_meta()
    order = []

    def init(module: Any) -> None:
        order.append(module)
        for parameter in module._parameters.values():
            if parameter is not None:
                parameter.fill_(3)

    done = spillway.materialize(model, "cuda", init)
    assert done.uninitialised == ()
    assert order[-1] is model and order.index(model.layers[0].self_attn.out_proj) < order.index(
        model.layers[0].self_attn
    )
    outcome.damaged += sum(int((parameter.detach().cpu() != 3).any()) for parameter in model.parameters())


def what_is_there_stays(outcome: Outcome) -> None:
    model = on_meta()
    model.layers[0] = torch.nn.Linear(64, 64, device="cuda")
    with torch.no_grad():
        model.layers[0].weight.fill_(5)
    place = model.layers[0].weight.data_ptr()
    model.scale.requires_grad_(False)
    with spillway.region("weights"):
        spillway.materialize(model)
    assert model.layers[0].weight.data_ptr() == place
    assert not model.scale.requires_grad and model.embedding.weight.requires_grad
    outcome.damaged += int((model.layers[0].weight.detach().cpu() != 5).any())
    before = torch.cuda.memory_allocated()
    spillway.evict("weights")
    assert torch.cuda.memory_allocated() < before
    spillway.restore("weights")
    refused("name where it shall run", spillway.materialize, on_meta(), "meta")


def what_was_loaded_stays(outcome: Outcome) -> None:
    """Beside what was not, in one module; shared or in inner modules too."""
    inits: list[Any] = [None, lambda module: [each.fill_(3) for each in module.parameters()]]
    for init in inits:
        model = on_meta()
        names = ["layers.0.norm1.weight", "layers.0.self_attn.out_proj.bias", "embedding.weight", "head.weight"]
        state = {name: torch.full_like(model.state_dict()[name], 7, device="cuda") for name in names}
        state["head.weight"] = state["embedding.weight"]
        model.load_state_dict(state, strict=False, assign=True)
        model.head.weight = model.embedding.weight
        model.head.bias = torch.nn.Parameter(torch.empty(100, device="meta"))
        loaded = [model.get_parameter(name) for name in names]
        versions = [each._version for each in loaded]
        done = spillway.materialize(model, "cuda", init)
        assert all(model.get_parameter(name) is each for name, each in zip(names, loaded, strict=True))
        assert versions == [each._version for each in loaded]
        outcome.damaged += sum(int((each.detach().cpu() != 7).any()) for each in loaded)
        assert not set(names) & {*done.initialised, *done.uninitialised}, done
        assert {"head.bias", "layers.0.norm1.bias"} <= set(done.initialised), done
        outcome.damaged += int((model.layers[0].norm1.bias.detach().cpu() != (3 if init else 0)).any())


def initialising_may_tie_weights(outcome: Outcome) -> None:
    """To one that has values, and in place of one."""
    model = on_meta()
    loaded = torch.full_like(model.embedding.weight, 7, device="cuda")
    model.load_state_dict({"embedding.weight": loaded, "scale": torch.ones(64)}, strict=False, assign=True)
    other = torch.nn.Parameter(torch.zeros(64, device="cuda"))
    model.head.weight = torch.nn.Parameter(torch.empty(100, 64, device="meta"))

    def init(module: Any) -> None:
        if module is model.head:
            module.weight = model.embedding.weight
        elif module is model:
            module.scale = other

    spillway.materialize(model, "cuda", init)
    assert model.head.weight is model.embedding.weight and model.scale is other
    outcome.damaged += int((model.head.weight.detach().cpu() != 7).any())


def parameters_among_buffers_stay_there(outcome: Outcome) -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(8, 8)
        model.register_buffer("mean", torch.nn.Parameter(torch.ones(8), requires_grad=False))
    spillway.materialize(model)
    assert [*dict(model.named_buffers())] == ["mean"] and model.mean.is_cuda
    assert [*dict(model.named_parameters())] == ["weight", "bias"]


def whoever_lists_its_weights_hears_of_them(outcome: Outcome) -> None:
    """A module that computes with a list of its own, beside its parameters."""
    with torch.device("meta"):
        model = torch.nn.LSTM(8, 8)
    spillway.materialize(model)
    outcome.damaged += sum(
        listed is not own for listed, own in zip(model._flat_weights, model.parameters(), strict=True)
    )


def what_fails_leaves_the_model_on_meta(outcome: Outcome) -> None:
    """For want of memory, and in the middle of the initialisation; the second call does all of it."""
    other = torch.empty(160 << 20, dtype=torch.uint8, device="cuda")
    with torch.device("meta"):
        model = torch.nn.ModuleList(torch.nn.Linear(1 << 10, 10 << 10) for _ in range(4))
    was = [id(each) for each in model.parameters()]
    before = torch.cuda.memory_allocated()
    order = []

    def init(module: Any) -> None:
        order.append(module)
        if len(order) == 3:
            raise ZeroDivisionError

    failures: list[tuple[Any, type[BaseException]]] = [(None, torch.OutOfMemoryError), (init, ZeroDivisionError)]
    for initialise, problem in failures:
        if problem is ZeroDivisionError:
            del other
        try:
            spillway.materialize(model, "cuda", initialise)
        except problem:
            pass
        else:
            raise AssertionError("did not fail")
        assert [id(each) for each in model.parameters()] == was
    gc.collect()
    assert torch.cuda.memory_allocated() == before - (160 << 20), torch.cuda.memory_allocated()
    done = spillway.materialize(model, "cuda", lambda module: [each.fill_(3) for each in module.parameters()])
    assert len(done.initialised) == 8, done
    outcome.damaged += sum(int((parameter.detach().cpu() != 3).any()) for parameter in model.parameters())


PROGRAMS = [
    all_gets_memory,
    own_initialisation,
    what_is_there_stays,
    what_was_loaded_stays,
    initialising_may_tie_weights,
    parameters_among_buffers_stay_there,
    whoever_lists_its_weights_hears_of_them,
    what_fails_leaves_the_model_on_meta,
]


class OnEverySeed(unittest.TestCase):
    def test_full(self) -> None:
        on_every_seed(self, "spillway", PROGRAMS)


if __name__ == "__main__":
    unittest.main()
