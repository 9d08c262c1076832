"""Models built on the meta device get their memory, and their first values, where they will run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .._errors import SpillwayError
from .install import import_torch


@dataclass(frozen=True)
class Materialized:
    """What materialize() did, by qualified names of parameters and buffers."""

    bytes: int  # allocated
    initialised: tuple[str, ...]
    uninitialised: tuple[str, ...]  # their module has nothing that resets it: load or write them
    meta: tuple[str, ...]  # that could not be made, and are as they were

    def __str__(self) -> str:
        missing = f"; without values yet: {', '.join(self.uninitialised)}" if self.uninitialised else ""
        left = f"; still on meta: {', '.join(self.meta)}" if self.meta else ""
        return f"{self.bytes} bytes, {len(self.initialised)} tensors initialised{missing}{left}"


def materialize(model: Any, device: Any = "cuda", init: Callable[[Any], object] | None = None) -> Materialized:
    """Allocates the parameters and buffers of `model` that are on meta on `device`, and initialises them there.

    Nothing is made on the host. A tensor that several modules share stays shared. Modules that had something on meta
    are then initialised, inner ones first: by `init`, which is given the module, else by their reset_parameters(). What
    has values already keeps them: while that runs it is on meta. Inside spillway.region() the memory is the region's.
    Errors: SpillwayError, torch.OutOfMemoryError, what `init` raises, and the model is on meta as it was.
    """
    torch = import_torch()
    place = torch.device(device)
    if place.type == "meta":
        raise SpillwayError("device 'meta' is where the model is already; name where it shall run, such as 'cuda'")
    made: dict[int, Any] = {}
    replaced: list[tuple[Any, dict[str, Any], str, Any]] = []
    fresh: dict[str, list[str]] = {}  # names of new tensors, by module
    left = []
    modules = dict(model.named_modules())
    for name, module in modules.items():
        for kind in (module._parameters, module._buffers):
            for own, tensor in kind.items():
                if tensor is None or not tensor.is_meta:
                    continue
                full = f"{name}.{own}" if name else own
                if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                    left.append(full)
                    continue
                if id(tensor) not in made:
                    empty = torch.empty_like(tensor, device=place, requires_grad=False)
                    made[id(tensor)] = _as(torch, tensor, empty)
                replaced.append((module, kind, own, tensor))
                fresh.setdefault(name, []).append(full)
    # All or nothing: one that is no longer on meta, and has no values, would be taken for a finished one.
    for module, kind, own, tensor in replaced:
        _put(module, kind, own, made[id(tensor)])
    try:
        with _on_meta(torch, model, made.values()):
            initialised, uninitialised = _initialise(torch, modules, fresh, init)
    except BaseException:
        for module, kind, own, tensor in replaced:
            _put(module, kind, own, tensor)
        raise
    size = sum(tensor.untyped_storage().nbytes() for tensor in made.values())
    return Materialized(size, tuple(initialised), tuple(uninitialised), tuple(left))


def _put(module: Any, kind: dict[str, Any], own: str, tensor: Any) -> None:
    if kind is module._parameters:
        setattr(module, own, tensor)  # an LSTM, which has a list of its weights, wants to be told
    else:
        kind[own] = tensor  # where a parameter stays a buffer


def _as(torch: Any, tensor: Any, made: Any) -> Any:
    """`made` as a parameter, if the tensor is one, and with its attributes."""
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    return made


@contextmanager
def _on_meta(torch: Any, model: Any, but: Collection[Any]) -> Iterator[None]:
    """Others than these are on meta inside, where nothing can be written to them."""
    fresh = {id(tensor) for tensor in but}
    outside = [
        (kind, own, tensor)
        for module in model.modules()
        for kind in (module._parameters, module._buffers)
        for own, tensor in kind.items()
        if tensor is not None and id(tensor) not in fresh and not torch.nn.parameter.is_lazy(tensor)
    ]
    # What several modules share stays shared.
    stand_ins = {
        id(tensor): _as(torch, tensor, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))
        for _, _, tensor in outside
    }
    for kind, own, tensor in outside:
        kind[own] = stand_ins[id(tensor)]
    values = {id(stand_ins[id(tensor)]): tensor for _, _, tensor in outside}
    try:
        yield
    finally:
        # Wherever they are by now: initialising may tie weights, or put others in their place.
        for module in model.modules():
            for kind in (module._parameters, module._buffers):
                kind.update({own: values[id(tensor)] for own, tensor in kind.items() if id(tensor) in values})


def _initialise(
    torch: Any, modules: dict[str, Any], fresh: dict[str, list[str]], init: Callable[[Any], object] | None
) -> tuple[list[str], list[str]]:
    """Names of those that have values now, and of those that have none."""
    done, missing = [], []
    # An outer module's values go before those that the inner ones gave themselves, as when they are constructed.
    for name in reversed(list(modules)):
        if name not in fresh:
            continue
        module = modules[name]
        reset = init or _reset_of(module)
        if reset is None:
            missing += fresh[name]
            continue
        with torch.no_grad():
            reset(module)
        done += fresh[name]
    return done, missing


def _reset_of(module: Any) -> Callable[[Any], object] | None:
    """The second name is what some of PyTorch's own modules have."""
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(found := getattr(type(module), name, None)):
            return found  # type: ignore[no-any-return]
    return None
