"""Results whose size depends on values, which fake tensors have none of: of a size that the user gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


@dataclass(frozen=True)
class Call:
    """A call of an operator whose result has a size that depends on values.

    `share`: of the largest size that its results could have; `note` is told of temporaries.
    """

    func: Any
    arguments: dict[str, Any]  # by the names of its schema
    share: float
    note: Callable[[torch.Tensor], None]

    def count(self, most: int) -> int:
        return math.ceil(most * self.share - 1e-9)  # which is less than what rounding adds

    def positions(self, mask: torch.Tensor) -> torch.Tensor:
        return mask.new_empty((self.count(mask.numel()), mask.dim()), dtype=torch.int64)


def _nonzero(call: Call) -> torch.Tensor:
    return call.positions(call.arguments["self"])


def _selected(call: Call) -> torch.Tensor:
    tensor = call.arguments["self"]
    shape = torch.broadcast_shapes(tensor.shape, call.arguments["mask"].shape)  # type: ignore[no-untyped-call]
    return tensor.new_empty((call.count(math.prod(shape)),))  # type: ignore[no-any-return]


def _unique(call: Call) -> tuple[torch.Tensor, ...]:
    """Values, where each went to, and counts; of whole rows along `dim` where that is given."""
    tensor, dim = call.arguments["self"], call.arguments.get("dim")
    shape = [tensor.numel()] if dim is None else list(tensor.shape)
    inverse = tensor.shape if dim is None else (tensor.shape[dim],)
    along = 0 if dim is None else dim
    count = shape[along] = call.count(shape[along])
    return (
        tensor.new_empty(shape),
        tensor.new_empty(inverse if call.arguments.get("return_inverse") else (0,), dtype=torch.int64),
        tensor.new_empty((count if call.arguments.get("return_counts") else 0,), dtype=torch.int64),
    )


def _picked(call: Call) -> Any:
    """x[mask]: PyTorch makes positions of each mask first."""
    indices: list[Any] = []
    for index in call.arguments["indices"]:
        if _is_mask(index):
            positions = call.positions(index)
            call.note(positions)
            indices += positions.unbind(1)
        else:
            indices.append(index)
    return call.func(call.arguments["self"], indices)


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


_SIZED: dict[Any, Callable[[Call], Any]] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _selected,
    aten._unique2.default: _unique,
    aten.unique_dim.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.index.Tensor: _picked,
}


def is_sized_by_values(func: Any, args: Any) -> bool:
    return func in _SIZED and (func is not aten.index.Tensor or any(map(_is_mask, args[1])))


def bounded(func: Any, args: Any, kwargs: Any, share: float, note: Callable[[torch.Tensor], None]) -> Any:
    """Returns the results of an operator that is_sized_by_values() knows."""
    named = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
    return _SIZED[func](Call(func, named | kwargs, share, note))
