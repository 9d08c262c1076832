"""Activations of chosen modules that are elsewhere between the forward pass and the backward pass."""

from __future__ import annotations

import difflib
import fnmatch
import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .. import _library
from .._errors import SpillwayError
from .._pytorch.annotate import tensors
from .._pytorch.install import import_torch
from .clock import Clock, Events
from .compiled import forget_compiled, outside_graphs
from .moving import end_earlier
from .saved import Packed, SavedTensors, StepStats, check_version
from .tiers import index_of, serves, tier

# A small view of a large storage keeps the storage: what else is in it is likely not an activation.
MOST_STORAGE_PER_TENSOR = 8
KEPT_STEPS = 100
NAMES_IN_ERROR = 5

_everyone: weakref.WeakSet[ActivationOffload] = weakref.WeakSet()


def offload_activations(
    model: Any,
    targets: str | Sequence[str] = ("*",),
    *,
    min_bytes: int = 1 << 20,
    to: str = "host",
    int8: str | Sequence[str] = (),
    most_wait: float = 0.025,
    clock: Clock | None = None,
) -> ActivationOffload:
    """Keeps what chosen modules save for the backward pass in host memory or on the disk meanwhile.

    `targets` are patterns (fnmatch) of qualified names of `model`'s modules. Saved tensors of `min_bytes` and more are
    copied out behind the work that made them, and back before the work that needs them: how far before is learned from
    the step before, and so is what had better stay, because the link could not hide its copies. Parameters, buffers
    and what is saved under capture stay; so does what there is no room for elsewhere. Inside other hooks for saved
    tensors (torch.utils.checkpoint, save_on_cpu) those hooks decide.

    `most_wait` is the share of a step's time (0 to 1) that the forward pass may wait for copies out, where the link
    cannot keep up with it: more is gone then when it ends, which is when most is held.

    `int8`, patterns of targets, loses precision: of what those save, float32, bfloat16 and float16, eight bits of each
    number and a scale for each 256 are kept, with an error of at most 1/252 of the largest finite magnitude of the 256,
    and what float32 and its type round. Gradients become about as inexact where the backward pass is smooth in what is
    saved: not in attention, which takes exponentials of it, nor in ReLU, whose smallest numbers come back as 0. The
    forward pass stays exact.

    `to`: "host" or "disk". `clock` measures streams, CUDA events unless told otherwise. An earlier call for one of the
    targets ends, as by its remove(). Errors: SpillwayError, when a pattern matches no module (or no target), or there
    is no such tier.
    """
    modules = matching(model, as_patterns(targets))
    lossy = among(modules, as_patterns(int8))
    handle = ActivationOffload(clock or Events(), min_bytes, to, lossy, most_wait)
    if not 0 <= most_wait <= 1:
        raise SpillwayError(f"most_wait={most_wait} is not allowed; allowed: 0 to 1")
    if min_bytes < 1:
        raise SpillwayError(f"min_bytes={min_bytes} is not allowed; allowed: 1 and more")
    if not serves("offload_activations()"):
        return handle
    if to == "disk" and not _library.is_set("spill_dir"):
        raise SpillwayError("there is no directory for to='disk': set SPILLWAY_CONF=spill_dir:DIRECTORY")
    end_earlier(_everyone, modules.values())
    handle.attach(model, modules)
    _everyone.add(handle)
    return handle


def as_patterns(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def among(targets: dict[str, Any], patterns: Sequence[str]) -> frozenset[str]:
    """Names of targets. Errors: SpillwayError, for a pattern that matches none."""
    for pattern in patterns:
        if not fnmatch.filter(targets, pattern):
            raise SpillwayError(
                f"int8={pattern!r} matches no target; they are: {', '.join([*targets][:NAMES_IN_ERROR])}"
            )
    return frozenset(name for name in targets if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def matching(model: Any, patterns: Sequence[str]) -> dict[str, Any]:
    """Modules by qualified name. Errors: SpillwayError, for a pattern that matches none."""
    names = dict(model.named_modules())
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            close = difflib.get_close_matches(pattern.replace("*", ""), list(names), NAMES_IN_ERROR, cutoff=0.0)
            raise SpillwayError(
                f"no module matches {pattern!r}; the closest names are: {', '.join(filter(None, close))}"
            )
    return {name: names[name] for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}


class ActivationOffload:
    """What offload_activations() returns. Thread-safe."""

    def __init__(self, clock: Clock, min_bytes: int, to: str, lossy: frozenset[str], most_wait: float) -> None:
        self._clock = clock
        self._min_bytes = min_bytes
        self._lossy = lossy
        self._most_wait = most_wait
        self._tier = tier(to, ("host", "disk"))
        self._lock = threading.RLock()
        self._devices: dict[int, SavedTensors] = {}
        self._thread = threading.local()
        self._removers: list[Any] = []
        self.modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self._steps: deque[StepStats] = deque(maxlen=KEPT_STEPS)
        self._totals: Counter[str] = Counter()
        self._most_away_bytes = 0
        self._own: set[int] = set()  # storages of parameters and buffers
        # One object each: what is in force is known by it.
        self._pack_hook = outside_graphs(self._pack)
        self._unpack_hook = outside_graphs(self._unpack)

    def attach(self, model: Any, modules: dict[str, Any]) -> None:
        forget_compiled()
        targets = set(modules.values())
        self.modules.update(targets)

        @outside_graphs
        def note(entered: Any, _: Any) -> None:
            if entered is model:
                self._own.clear()  # they may have moved since
            self._note_own(entered, entered is model or entered in targets)

        # Those of fully_shard() are others while their module runs, and its own hook makes them.
        for module in model.modules():
            self._removers.append(module.register_forward_pre_hook(note).remove)
        for name, module in modules.items():

            @outside_graphs
            def enter(entered: Any, _: Any, name: str = name) -> None:
                self._enter(name)

            @outside_graphs
            def leave(left: Any, *_: Any, name: str = name) -> None:
                self._leave()

            self._removers.append(module.register_forward_pre_hook(enter, prepend=True).remove)
            self._removers.append(module.register_forward_hook(leave, always_call=True).remove)

        @outside_graphs
        def begin(*_: Any) -> None:
            self._leave_all()

        self._removers.append(model.register_forward_pre_hook(begin, prepend=True).remove)

    def remove(self) -> None:
        """Nothing is put away from here on; what is elsewhere comes back as it is asked for. Again is ok."""
        for remove in self._removers:
            remove()
        self._removers.clear()
        self._leave_all()

    def stats(self) -> dict[str, Any]:
        """Sums over all steps, `most_away_bytes`, how far ahead is fetched now, and under "steps" the last 100.

        Waits for the devices. A step counts when the forward pass of the next has begun, or here. See
        docs/spilling.md for the names.
        """
        torch = import_torch()
        with self._lock:
            for index, device in self._devices.items():
                torch.cuda.synchronize(index)
                device.finish()
            return {
                **self._totals,
                "most_away_bytes": self._most_away_bytes,
                "depth": max((device.schedule.depth for device in self._devices.values()), default=0),
                "steps": [asdict(step) for step in self._steps],
            }

    # ---- Modules

    def _enter(self, name: str) -> None:
        stack = self._stack()
        hooks = None
        if self._may_hook():
            hooks = import_torch().autograd.graph.saved_tensors_hooks(self._pack_hook, self._unpack_hook)
            hooks.__enter__()
        stack.append((name, hooks))

    def _leave(self) -> None:
        stack = self._stack()
        if stack:
            _, hooks = stack.pop()
            if hooks is not None:
                hooks.__exit__(None, None, None)

    def _leave_all(self) -> None:
        """Modules that a KeyboardInterrupt ended, after which PyTorch calls no hook."""
        while self._stack():
            self._leave()

    def _stack(self) -> list[Any]:
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        stack: list[Any] = self._thread.stack
        return stack

    def _may_hook(self) -> bool:
        """Not while a backward pass makes again what it needs at once, and not inside others' hooks."""
        torch = import_torch()
        native = torch._C._autograd
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1 or torch.compiler.is_compiling():
            return False
        if not native._saved_tensors_hooks_is_enabled():
            return False
        top = native._top_saved_tensors_default_hooks(True)
        return top is None or top[0] is self._pack_hook

    def _note_own(self, module: Any, whole: bool) -> None:
        torch = import_torch()
        there = [*module.parameters(whole), *module.buffers(whole)]
        held = tensors(torch, [tensor for tensor in there if not torch.nn.parameter.is_lazy(tensor)])
        self._own.update(tensor.untyped_storage()._cdata for tensor in held)

    # ---- Saved tensors

    def _pack(self, tensor: Any) -> Any:
        if not self._is_wanted(tensor):
            # An inference tensor has no version.
            return tensor, None if tensor.is_inference() else tensor._version
        with self._lock:
            names = [name for name, _ in self._stack()]
            is_lossy = not self._lossy.isdisjoint(names)
            return self._device(tensor.device.index).pack(names[-1], tensor, is_lossy)

    def _unpack(self, packed: Any) -> Any:
        if isinstance(packed, Packed):
            with self._lock:
                return self._device(packed.entry.index).unpack(packed)
        tensor, version = packed
        if version is not None:
            check_version(tensor._version, version, f"{tensor.dtype} {list(tensor.shape)}")
        return tensor

    def _is_wanted(self, tensor: Any) -> bool:
        torch = import_torch()
        if (
            not self._removers
            or type(tensor) is not torch.Tensor
            or not tensor.is_cuda
            or tensor.nbytes < self._min_bytes
        ):
            return False
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
            return False
        storage = tensor.untyped_storage()
        if storage._cdata in self._own or storage.nbytes() > MOST_STORAGE_PER_TENSOR * tensor.nbytes:
            return False
        return self._stack() != [] and not torch.cuda.is_current_stream_capturing()

    def _device(self, index: int) -> SavedTensors:
        if index not in self._devices:
            index_of(index)
            is_timed = self._tier == tier("host")
            self._devices[index] = SavedTensors(index, self._tier, self._clock, is_timed, self._most_wait, self._finish)
        return self._devices[index]

    def _finish(self, step: StepStats) -> None:
        self._steps.append(step)
        self._totals.update({name: value for name, value in asdict(step).items() if name != "away_bytes"})
        self._most_away_bytes = max(self._most_away_bytes, step.away_bytes)
