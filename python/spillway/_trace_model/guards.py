"""While a model is traced: what fake tensors would make PyTorch do otherwise is mended, what cannot be traced refused.

Each guard stands for one way in which a trace would be wrong without a word.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .._errors import SpillwayError
from .fake_trace import Recorder
from .process_groups import Rank, standing_in
from .replacing import replaced

# Where PyTorch chooses foreach by the type of the tensors.
FOREACH_LISTS = ("torch.optim.optimizer", "torch.utils._foreach_utils")


class UntraceableError(SpillwayError):
    """The program does what a trace on fake tensors cannot show."""


class Told(Protocol):
    """Who is told of phases, and of what memory is."""

    @property
    def step(self) -> int: ...
    def begin(self, step: int, name: str) -> None: ...
    def tell(self, holder: Any, role: str) -> None: ...
    def find_here(self, kind: str, text: str) -> None: ...


@contextlib.contextmanager
def guarded(mode: FakeTensorMode, recorder: Recorder, may_compile: bool, rank: Rank | None) -> Iterator[None]:
    """`may_compile`: compiled code is traced as if it were not; else it is refused, where there is a compiler.

    `rank`: which one of a job this is; none: a program that is one is refused.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(torch.utils, "swap_tensors", _swap(mode)))
        stack.enter_context(_replaced(torch.UntypedStorage, "resize_", _resize(recorder)))
        stack.enter_context(_replaced(torch, "compile", _compile(recorder, may_compile)))
        stack.enter_context(_replaced(torch.cuda.CUDAGraph, "capture_begin", _refuse("a CUDA graph's capture")))
        if rank is None:
            alone = "a process group without --world-size"
            stack.enter_context(_replaced(torch.distributed, "init_process_group", _refuse(alone)))
        else:
            stack.enter_context(standing_in(rank))
        stack.enter_context(_replaced(torch.distributed, "TCPStore", _refuse("a store of the program's own")))
        ddp = torch.nn.parallel.DistributedDataParallel
        stack.enter_context(_replaced(ddp, "__init__", _refuse("DistributedDataParallel, whose buckets C++ fills")))
        for name, live in (("memory_allocated", "live_bytes"), ("max_memory_allocated", "peak_bytes")):
            stack.enter_context(_replaced(torch.cuda, name, _allocated(getattr(recorder, live))))
        for name in ("memory_reserved", "max_memory_reserved", "mem_get_info", "memory_stats"):
            stack.enter_context(
                _replaced(torch.cuda, name, _reading(recorder, name, "the allocator of the trace is empty"))
            )
        stack.enter_context(_foreach_takes_fake_tensors())
        stack.enter_context(_copies_share_the_mode())
        stack.enter_context(optimizers_tell(recorder))
        stack.enter_context(_without_collector())
        yield


def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> contextlib.AbstractContextManager[None]:
    """By what is made of the attribute that is there."""
    return replaced(owner, name, make(getattr(owner, name)))


def _refuse(what: str) -> Callable[[Any], Any]:
    def make(_: Any) -> Any:
        def refuse(*_args: Any, **_kwargs: Any) -> None:
            raise UntraceableError(f"{what} cannot be traced")

        return refuse

    return make


def _swap(mode: FakeTensorMode) -> Callable[[Any], Any]:
    """Module.to() swaps fake parameters, but not those that the mode's own table refers to weakly."""

    def make(swap: Any) -> Any:
        def forgetting(first: torch.Tensor, second: torch.Tensor) -> None:
            memo: Any = mode.fake_tensor_converter.meta_converter.tensor_memo
            for tensor in (first, second):
                keys = [ref.key for ref in weakref.getweakrefs(tensor) if isinstance(ref, weakref.KeyedRef)]
                for key in keys:
                    memo.pop(key, None)
            swap(first, second)

        return forgetting

    return make


def _resize(recorder: Recorder) -> Callable[[Any], Any]:
    """FSDP gives memory back by making a storage small: no operator shows it."""

    def make(resize: Any) -> Any:
        def resizing(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            recorder.resized(storage)
            return result

        return resizing

    return make


def _compile(recorder: Recorder, may_compile: bool) -> Callable[[Any], Any]:
    def make(_: Any) -> Any:
        def uncompiled(model: Any = None, **kwargs: Any) -> Any:
            needs_triton = kwargs.get("backend", "inductor") == "inductor"
            if not may_compile and not (needs_triton and importlib.util.find_spec("triton") is None):
                raise UntraceableError("torch.compile cannot be traced")
            recorder.find_here(
                "compile", "torch.compile is left out: compiled code keeps fewer tensors than is traced here"
            )
            return (lambda function: function) if model is None else model

        return uncompiled

    return make


def _allocated(bytes_by_device: dict[int, int]) -> Callable[[Any], Any]:
    def make(_: Any) -> Any:
        def allocated(device: Any = None) -> int:
            return bytes_by_device.get(torch.cuda._utils._get_device_index(device, optional=True), 0)

        return allocated

    return make


def free_memory_tells(told: Told) -> contextlib.AbstractContextManager[None]:
    """Who asks what is free on the simulated device learns what no GPU has."""
    return _replaced(torch.cuda, "mem_get_info", _reading(told, "mem_get_info", "the simulated device has terabytes"))


def _reading(told: Told, name: str, why: str) -> Callable[[Any], Any]:
    def make(read: Any) -> Any:
        def reading(*args: Any, **kwargs: Any) -> Any:
            told.find_here("memory-read", f"torch.cuda.{name} was asked: {why}")
            return read(*args, **kwargs)

        return reading

    return make


@contextlib.contextmanager
def _foreach_takes_fake_tensors() -> Iterator[None]:
    """Else optimizers and gradient clipping would take the loop over single tensors, which holds less."""
    lists = {id(found): found for name in FOREACH_LISTS if (found := _supported(importlib.import_module(name)))}
    for each in lists.values():
        each.append(FakeTensor)
    try:
        yield
    finally:
        for each in lists.values():
            each.remove(FakeTensor)


def _supported(module: Any) -> list[Any] | None:
    found = getattr(module, "_foreach_supported_types", None)
    return found if isinstance(found, list) else None


@contextlib.contextmanager
def _copies_share_the_mode() -> Iterator[None]:
    """A deep copy of a fake tensor would have a copy of the mode, and the weak references of that one's own table."""
    FakeTensorMode.__deepcopy__ = lambda mode, _memo: mode  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # PyTorch does, to copy it
            yield
    finally:
        del FakeTensorMode.__deepcopy__  # type: ignore[attr-defined]


@contextlib.contextmanager
def optimizers_tell(told: Told) -> Iterator[None]:
    """Their steps are phases, and they know what is a parameter, a gradient and a state."""

    def before(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        told.begin(told.step, "optimizer")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                told.tell(parameter, "parameters")
                told.tell(parameter.grad, "gradients")

    def after(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        told.begin(told.step, "forward")
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                told.tell(value, "optimizer states")

    hooks = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Tracing makes more objects than the program: Python's collector would come at other moments."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
