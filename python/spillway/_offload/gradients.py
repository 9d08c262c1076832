"""Gradients that leave the device with their layer, and what stands for them in `.grad` meanwhile.

Each is a stash: copied out behind the work that accumulated it, so nobody waits, and its memory serves others as soon
as the copy is done. Nobody needs its address: who uses a gradient asks the parameter for it. What stands for it has its
shape and no memory; whatever PyTorch does with it is done with the gradient, which comes back for that.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .._errors import SpillwayError, SpillwayWarning
from .._pytorch.install import import_torch
from . import stashes
from .moving import users
from .tiers import tier

# A copy of less takes as long as its call. Of a layer that is worth moving it is next to nothing.
LEAST_BYTES = 256 << 10
# These are no operators of PyTorch's, and look at memory.
METHODS = ("data_ptr", "untyped_storage", "tolist", "__repr__", "__reduce_ex__", "numpy", "__deepcopy__", "__dlpack__")


class LayerGradients:
    """Those of the parameters of one layer. Not thread-safe."""

    def __init__(self, tag: str, to: str, parameters: Sequence[Any]) -> None:
        self._tag = tag
        self._tier = tier(to, ("host", "disk"))
        self._parameters = list(parameters)
        self._streams: dict[int, Any] = {}  # by parameter, that on which its gradient was accumulated last
        self._hooks: dict[int, Any] = {}
        self._warned = False
        self._watch()

    def _watch(self) -> None:
        """A gradient is accumulated on the stream that its parameter was first used on, and nobody need wait for that
        until the pass is over. A parameter may be thawed at any time."""
        cuda = import_torch().cuda
        streams = self._streams
        for number, parameter in enumerate(self._parameters):
            if number in self._hooks or not parameter.requires_grad or not parameter.is_cuda:
                continue

            def note(parameter: Any, number: int = number) -> None:
                streams[number] = cuda.current_stream(parameter.device)

            self._hooks[number] = parameter.register_post_accumulate_grad_hook(note)

    def release(self) -> None:
        """Everything comes back and stays. Errors: as bring()."""
        self.bring()
        for hook in self._hooks.values():
            hook.remove()
        self._hooks = {}

    def send(self) -> None:
        """Those that are whole storages leave. Where there is no room for one, it stays, and a warning says so once."""
        self._watch()
        for number, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if isinstance(gradient, stand_in()):
                gradient = gradient.here
            if gradient is None or not may_leave(gradient):
                continue
            if number in self._streams:
                # The copy waits, not the work: for what is enqueued there by now, hooks of the program's included.
                stashes.streams(gradient.device.index)[0].wait_stream(self._streams[number])
            stash = stashes.put(gradient, self._tier)
            if stash is not None:
                parameter.grad = stand_in()(gradient, stash)
            elif not self._warned:
                self._warned = True
                text = f"gradients of '{self._tag}' stay: there is no room for them elsewhere"
                warnings.warn(text, SpillwayWarning, stacklevel=3)

    def prefetch(self) -> None:
        """bring() says how it went."""
        for parameter in self._parameters:
            if isinstance(parameter.grad, stand_in()):
                with suppress(SpillwayError, import_torch().OutOfMemoryError):
                    parameter.grad.prefetch()

    def bring(self) -> None:
        """Errors: SpillwayError, torch.OutOfMemoryError, and those that came are here."""
        for parameter in self._parameters:
            if isinstance(parameter.grad, stand_in()):
                parameter.grad = parameter.grad.bring()


def may_leave(gradient: Any) -> bool:
    """Not what may be part of a graph, or of something larger, or is looked at through another tensor too (a bucket of
    DistributedDataParallel's)."""
    torch = import_torch()
    if type(gradient) is not torch.Tensor or gradient.layout != torch.strided or gradient.requires_grad:
        return False
    size: int = gradient.nbytes
    if size < LEAST_BYTES or size != int(gradient.untyped_storage().nbytes()):
        return False
    return users(torch, gradient) == 1


@functools.cache
def stand_in() -> Any:
    """The class, which there is once PyTorch is imported."""
    torch = import_torch()

    class AwayGradient(torch.Tensor):  # type: ignore[misc, name-defined]
        __torch_function__ = torch._C._disabled_torch_function_impl

        @staticmethod
        def __new__(cls: Any, gradient: Any, stash: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(
                cls, gradient.shape, strides=gradient.stride(), dtype=gradient.dtype, device=gradient.device
            )

        def __init__(self, gradient: Any, stash: Any) -> None:
            self.here: Any = None  # the gradient, once it was used
            self._stash = stash

        def prefetch(self) -> None:
            if self.here is None and not self._stash.is_coming:
                self._stash.begin_get()

        def bring(self) -> Any:
            if self.here is None:
                self.prefetch()
                storage = self._stash.finish_get()
                empty = torch.empty(0, dtype=self.dtype, device=self.device)
                self.here = empty.set_(storage, 0, self.shape, self.stride())
                self._stash = None
            return self.here

        @property
        def data(self) -> Any:
            return torch.Tensor.data.__get__(self)

        @data.setter
        def data(self, value: Any) -> None:
            self.bring().data = value

        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            map_only = torch.utils._pytree.tree_map_only
            args, kwargs = map_only(cls, lambda each: each.bring(), (args, kwargs or {}))
            return function(*args, **kwargs)

    for name in METHODS:
        setattr(AwayGradient, name, forward(name))
    return AwayGradient


def forward(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.bring(), name)(*args, **kwargs)

    return method
