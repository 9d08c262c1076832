"""Code that is compiled in a dry run, by Inductor, or by Triton for kernels of the program's own.

It is compiled as for a GPU, with the assembler of Triton's wheel, and launched as kernels that compute nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from . import _cache
from ._errors import SpillwayError
from ._pytorch.after_import import after_import

WRITTEN = ("out_ptr", "in_out_ptr")  # how Inductor names what a kernel writes


def prepare(torch: Any, forget: Callable[[int, int], None] | None) -> None:
    """`forget(pointer, bytes)` is told what is not known any more, where values are known at all."""
    keep_apart()
    after_import("torch._inductor.select_algorithm", time_few_choices)
    if forget is not None:
        watch = functools.partial(_watch, torch, forget)
        after_import("torch._inductor.runtime.triton_heuristics", lambda made: watch(made.CachingAutotuner, written))
        after_import("triton.runtime.jit", lambda made: watch(made.JITFunction, every_argument))


@contextlib.contextmanager
def without_compiler(torch: Any) -> Iterator[None]:
    """PyTorch asks its compiler for the names of frames, and imports it to ask: half of the time of a short program.

    One that was not imported has compiled nothing, and names no frame.
    """
    if "torch._inductor" in sys.modules:
        yield
        return
    names = vars(torch)
    names["_inductor"] = absent = SimpleNamespace()
    try:
        yield
    finally:
        if names.get("_inductor") is absent:  # and not imported meanwhile
            del names["_inductor"]


def keep_apart() -> None:
    """What was chosen by times of the simulated device is not for runs on a GPU, and theirs not for this one."""
    try:
        folder = _cache.writable_folder() / "compiled"
    except SpillwayError:  # nothing is kept at all then
        return
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")


def time_few_choices(select: Any) -> None:
    """Of the kernels that max-autotune would time for a product, PyTorch's own and one of Triton's: they take the same
    memory, and times mean nothing here. Those that are Triton's alone are all tried, as some may not fit the device."""
    add = getattr(select, "add_preprocessing_fn", None)  # not of every release
    if add is not None:
        add(lambda choices: few(choices, select.TritonTemplateCaller))


def few(choices: list[Any], generated: type) -> list[Any]:
    others = [choice for choice in choices if not isinstance(choice, generated)]
    return others + [choice for choice in choices if isinstance(choice, generated)][: 1 if others else None]


def _watch(torch: Any, forget: Callable[[int, int], None], kernels: Any, find: Callable[..., Iterable[Any]]) -> None:
    launch = kernels.run

    @functools.wraps(launch)
    def launch_and_forget(self: Any, *arguments: Any, **named: Any) -> Any:
        result = launch(self, *arguments, **named)
        for one in find(self, arguments, named):
            if isinstance(one, torch.Tensor) and one.is_cuda:
                storage = one.untyped_storage()
                forget(storage.data_ptr(), storage.nbytes())
        return result

    kernels.run = launch_and_forget


def written(kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[Any]:
    """Inductor knows what its own kernels write; into graphs it takes the program's as well."""
    if not any(name.startswith(WRITTEN) for name in kernel.fn.arg_names):
        yield from every_argument(kernel, arguments, named)
        return
    for name, one in (*zip(kernel.fn.arg_names, arguments, strict=False), *named.items()):
        if name.startswith(WRITTEN) or name in kernel.mutated_arg_names:
            yield one


def every_argument(kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[Any]:
    """Nobody knows what a program's kernels write."""
    yield from arguments
    yield from named.values()
