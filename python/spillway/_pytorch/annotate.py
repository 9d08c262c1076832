"""What a model and its optimizer hold, said to the library: its dumps then tell model state from the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from .._errors import SpillwayError
from .._library import check, library
from .install import import_torch, in_use
from .memory_info import driver_memory_info

OUTSIDE = "outside_bytes"
NAMES = ("parameter_bytes", "gradient_bytes", "buffer_bytes", "optimizer_bytes")


def annotate(model: Any, optimizer: Any = None) -> dict[int, dict[str, int]]:
    """Says how many bytes are parameters, gradients, buffers and optimizer state, for each CUDA device.

    `model` is a module; `optimizer` an optimizer, several, or None. To be called when all that is to be counted is
    there: gradients exist after a backward pass, the optimizer's state after its first step. Called again it replaces
    what it said before. Bytes are those of the storages, without rounding; a storage counts once, under the first of
    the four names that has it. Where there are any, `outside_bytes` of the dump is what the device has in use and the
    allocator has not reserved: CUDA's context, other libraries, other processes.

    Returns the bytes by device and name. Without Spillway in use nothing else happens. Raises SpillwayError where
    `model` or `optimizer` is something else, or the library cannot take them.
    """
    torch = import_torch()
    if not isinstance(model, torch.nn.Module):
        raise SpillwayError(f"annotate() takes a torch.nn.Module, not {type(model).__name__}")
    optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    for each in optimizers:
        if not hasattr(each, "param_groups"):
            raise SpillwayError(f"annotate() takes optimizers of torch.optim, not {type(each).__name__}")
    groups = [group for each in optimizers for group in each.param_groups]
    parameters = [*model.parameters(), *(parameter for group in groups for parameter in group["params"])]
    holders = {
        "parameter_bytes": parameters,
        "gradient_bytes": [parameter.grad for parameter in parameters],
        "buffer_bytes": list(model.buffers()),
        "optimizer_bytes": [[each.state for each in optimizers], groups],
    }
    counts = {device: dict.fromkeys(NAMES, 0) for device in range(torch.cuda.device_count())}
    seen: set[tuple[int, int]] = set()
    for name in NAMES:
        for tensor in tensors(torch, holders[name]):
            if tensor.device.type != "cuda":
                continue
            storage = tensor.untyped_storage()
            place = (tensor.device.index, storage.data_ptr())
            if place not in seen:
                seen.add(place)
                counts[tensor.device.index][name] += storage.nbytes()
    if in_use():
        for device, names in counts.items():
            outside = {OUTSIDE: outside_bytes(torch, device)} if any(names.values()) else {}
            for name, count in (names | outside).items():
                check(library().spw_annotate(device, name.encode(), count))
    return counts


def outside_bytes(torch: Any, device: int) -> int:
    free, total = driver_memory_info(torch, device)
    return max(0, int(total - free - torch.cuda.memory_reserved(device)))


def tensors(torch: Any, holder: Any) -> Iterator[Any]:
    """All in outer_tensors(); of one made of others (distributed, quantised), those that are here."""
    for each in outer_tensors(torch, holder):
        if hasattr(each, "__tensor_flatten__"):
            yield from tensors(torch, [getattr(each, name) for name in each.__tensor_flatten__()[0]])
        else:
            yield each


def outer_tensors(torch: Any, holder: Any) -> Iterator[Any]:
    """All in nested lists, mappings and dataclasses, each of which is looked into once."""
    seen: dict[int, Any] = {}
    waiting = [holder]
    while waiting:
        each = waiting.pop()
        if isinstance(each, torch.Tensor):
            yield each
        elif id(each) not in seen and (inside := _inside(each)):
            seen[id(each)] = each
            waiting += reversed(inside)


def _inside(holder: Any) -> list[Any]:
    if isinstance(holder, Mapping):
        return list(holder.values())
    if isinstance(holder, list | tuple):
        return list(holder)
    if is_dataclass(holder) and not isinstance(holder, type):
        return [getattr(holder, each.name, None) for each in fields(holder)]
    return []
