"""Small integers of the host have their values while a model is traced: lengths, flags, the ranks of a mesh."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

# Of a tensor. Larger ones are fake, as all of floating-point numbers are.
MOST_BYTES = 64 << 10
# What these answer is of other ranks.
COLLECTIVES = ("c10d", "_c10d_functional")


class HostValues:
    """Knows which tensors of the host are real: those that follow from nothing that is fake. Not thread-safe."""

    def __init__(self) -> None:
        self._overwritten: set[int] = set()  # storages that an operator with fake tensors, or other ranks, wrote to

    def are_known(self, func: Any, args: Any, kwargs: Any) -> bool:
        """The operator may run as it is. To be called where it runs on fake tensors: one without any is tried so."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func.namespace in COLLECTIVES:
            self._forget(tensors)
            return False
        if func._schema.is_mutable and any(isinstance(tensor, FakeTensor) for tensor in tensors):
            self._forget(_written(func, args, kwargs))
        if kwargs.get("device") not in (None, torch.device("cpu")):
            return False
        if tensors:
            return all(self._is_real(tensor) for tensor in tensors)
        results = [each for each in tree_leaves(func(*args, **kwargs)) if isinstance(each, torch.Tensor)]
        return len(results) > 0 and all(_is_small_integer(each) for each in results)

    def _is_real(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) is torch.Tensor
            and _is_small_integer(tensor)
            and tensor.untyped_storage()._cdata not in self._overwritten
        )

    def _forget(self, tensors: Any) -> None:
        """A real tensor that takes what is fake is not told of it: its value is known no more."""
        for tensor in tree_leaves(tensors):
            if type(tensor) is torch.Tensor and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                self._overwritten.add(storage._cdata)
                weakref.finalize(storage, self._overwritten.discard, storage._cdata).atexit = False  # type: ignore[misc]


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """What the operator writes to, by its schema."""
    given = {info.name: each for info, each in zip(func._schema.arguments, args, strict=False)} | kwargs
    return [given[info.name] for info in func._schema.arguments if info.name in given and _writes(info)]


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _is_small_integer(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.dtype.is_floating_point
        and not tensor.dtype.is_complex
        and tensor.untyped_storage().nbytes() <= MOST_BYTES
    )
