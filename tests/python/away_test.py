"""Parameters and states of an optimizer that somebody uses while they are away, on the late simulated device."""

from __future__ import annotations

import copy
import io
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import spillway
from moving_test import COUNT, OPTIMIZERS, WIDTH, Model, backward, batch, damaged, mark, parameters_of, state_of
from on_seeds import Outcome, Program, torch
from spilling import every_seed


def ways_to_use_what_is_away(model: Any, optimizer: Any, averaged: Any) -> dict[str, Callable[[], object]]:
    """What programs do with parameters and states between passes."""
    moved = model.blocks[4].linear.weight

    def merge() -> None:
        with torch.no_grad():
            moved.copy_(moved.clone())

    def there_and_back() -> None:
        model.cpu()
        assert {tensor.device.type for tensor in parameters_of(model)} == {"cpu"}
        model.cuda()

    return {
        "one to the host": lambda: moved.cpu(),
        "data": lambda: moved.data.cpu(),
        "as numbers": lambda: moved.detach().cpu().numpy().sum(),
        "a copy of the model": lambda: copy.deepcopy(model),
        "a copy of a layer": lambda: copy.deepcopy(model.blocks[5]),
        "names": lambda: {name: tensor.cpu() for name, tensor in model.named_parameters()},
        "an average": lambda: [mine.copy_(theirs) for mine, theirs in zip(averaged, model.parameters(), strict=True)],
        "many at once": lambda: torch._foreach_add(list(model.parameters()), 0),
        "a merge": merge,
        "pickled": lambda: torch.save(moved, io.BytesIO()),
        "states": lambda: [state["exp_avg"].cpu() for state in optimizer.state.values()],
        "printed": lambda: repr(moved),
        "to the host and back": there_and_back,  # the last: what came back is ordinary memory
    }


def whoever_uses_what_is_away_has_it_brought_back(outcome: Outcome) -> None:
    """Under a debugger of memory, each would read what is not there."""
    model = Model().cuda()
    optimizer = OPTIMIZERS["foreach"](model.parameters())
    backward(model)
    optimizer.step()
    held = state_of(optimizer)
    averaged = [torch.zeros_like(parameter) for parameter in model.parameters()]
    mark(parameters_of(model), 3)
    mark(held, 50)
    states = spillway.offload_optimizer(optimizer)
    handle = spillway.offload_parameters(model, 0, optimizer=optimizer)
    for name, use in ways_to_use_what_is_away(model, optimizer, averaged).items():
        with torch.no_grad():
            model(batch())
        away = sum(row["host_bytes"] > 0 for row in spillway.regions().values())
        assert away >= COUNT - 2, (name, away)
        moved = model.blocks[4].linear.weight
        assert isinstance(moved, torch.nn.Parameter) and moved.shape == (WIDTH, WIDTH) and moved.requires_grad, name
        use()
        if name == "a copy of the model":
            copied = copy.deepcopy(model)
            assert all(type(parameter) is torch.nn.Parameter for parameter in copied.parameters())
            outcome.damaged += damaged(parameters_of(copied), 3)
        outcome.damaged += damaged(parameters_of(model), 3) + damaged(held, 50)
    outcome.damaged += damaged(averaged, 3)
    backward(model)
    optimizer.step()
    states.remove()
    handle.remove()


def what_a_view_shows_stays(outcome: Outcome) -> None:
    """sglang#22057: a view of a parameter, kept as an attribute, shows what the parameter holds."""
    model = Model().cuda()
    mark(parameters_of(model), 3)
    weight = model.blocks[3].linear.weight
    kept = weight.detach().view(-1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        handle = spillway.offload_parameters(model, 0)
    assert [each for each in said if "stays on the device: another shows its memory" in str(each.message)]
    with torch.no_grad():
        model(batch())
        weight.fill_(77)
    assert kept.data_ptr() == weight.data_ptr() and int(kept[0]) == 77
    outcome.damaged += int((kept.cpu() != 77).any())
    handle.remove()


PROGRAMS: list[Program] = [
    whoever_uses_what_is_away_has_it_brought_back,
    what_a_view_shows_stays,
]

OnEverySeed = every_seed(PROGRAMS)

if __name__ == "__main__":
    unittest.main()
