"""Who holds the devices' memory at the peak of a dry run: lines of the program, and what their blocks are."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import linecache
import re
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ._library import HERE
from ._pytorch import build

# As in _peak_holders/holders.h.
KINDS = ("others", "parameters", "gradients", "optimizer_states", "buffers")
_OTHERS, _PARAMETERS, _GRADIENTS, _STATES, _BUFFERS = range(5)
# Lines of a peak in a result, those with most first.
MOST_LINES = 100
# Steps of each optimizer after which it is looked what its states are, whether or not there was a new peak.
FIRST_STEPS = 2
_Called = ctypes.CFUNCTYPE(None)
_MODULE = "/torch/nn/modules/module.py"
# A program may ask PyTorch for the frames of C++ as well.
_OF_C = re.compile(r"(^$|^\?\?|\.(c|cc|cpp|cxx|cu|cuh|h|hpp|so)(\.[\d.]+)?)$")
_kept: list[Any] = []  # what the tracker calls to the end


class Holders:
    """Of one process. start() before the program makes modules, begin() when the devices come into use."""

    def __init__(self, torch: Any, is_own: Callable[[str], bool]) -> None:
        self.torch = torch
        self.is_own = is_own
        self.modules: dict[int, weakref.ref[Any]] = {}
        self.optimizers: dict[int, weakref.ref[Any]] = {}
        self.steps: dict[int, int] = {}
        self.tracker: ctypes.CDLL | None = None
        self.marked_peaks = -1
        self.keeps_history = False
        self.record: Callable[..., Any] = lambda *_: None
        self.recorded: tuple[Any, ...] = ()

    def start(self) -> None:
        torch = self.torch
        modules = torch.nn.modules.module
        optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides it
        modules.register_module_parameter_registration_hook(self._note_module)
        modules.register_module_buffer_registration_hook(self._note_module)
        optimizers.register_optimizer_step_pre_hook(self._before_step)
        optimizers.register_optimizer_step_post_hook(self._after_step)
        self._share_record()

    def begin(self, keeps_history: bool) -> None:
        """With `keeps_history` PyTorch keeps all events, for a snapshot. Errors: SpillwayError."""
        self.keeps_history = keeps_history
        library = ctypes.CDLL(str(build.compiled(self.torch, "spillway_holders", HERE / "_peak_holders", HERE, [])))
        library.spillway_holders_peaks.restype = ctypes.c_uint64
        ask = _Called(self.mark)
        _kept.extend((ask, self))
        library.spillway_holders_start(ask)
        self.tracker = library
        if self.recorded:
            self.record(*self.recorded)
        else:
            self.torch.cuda.memory._record_memory_history(None)

    def say_crashes(self, file: int) -> None:
        if self.tracker is not None:
            self.tracker.spillway_holders_say_crashes(file)

    def tell_before_ending(self, tell: Callable[[], Any]) -> None:
        """`tell` is called, in another thread, where somebody ends the process by a signal that it does not handle."""
        library = self.tracker
        if library is None:
            return

        def begin_and_tell() -> None:
            library.spillway_holders_tells()
            tell()

        called = _Called(begin_and_tell)
        _kept.append(called)
        library.spillway_holders_tell_before_ending(called)

    def _share_record(self) -> None:
        """PyTorch's own record of stacks serves the program as well, and goes on where that ends it."""
        record = self.torch._C._cuda_record_memory_history

        def record_for_both(enabled: Any, context: Any, stacks: Any, entries: int, *more: Any) -> Any:
            begins = not is_programs()
            self.recorded = (enabled, context, stacks, entries, *more)
            if self.tracker is None:
                return record(enabled, context, stacks, entries, *more)
            least = sys.maxsize if self.keeps_history else 1
            if enabled is None:
                # Stacks of frees as well would lose the exception by which a recomputation ends early, in PyTorch 2.11.
                enabled, context, stacks, entries = "all", "alloc", "python", least
            elif begins and more and not self.keeps_history:
                more = (True, *more[1:])  # what was there before is not the program's
            return record(enabled, "all" if context == "all" else "alloc", stacks, max(entries, least), *more)

        is_recorded = self.torch._C._cuda_isHistoryEnabled

        def is_programs() -> bool:
            """Whether the program itself has one."""
            if self.tracker is None:  # before the first use of CUDA PyTorch's own answer is a segmentation fault
                return bool(self.torch.cuda.is_initialized() and is_recorded())
            return bool(self.recorded) and self.recorded[0] is not None

        self.torch._C._cuda_record_memory_history = record_for_both
        self.torch._C._cuda_isHistoryEnabled = is_programs
        self.record = record_for_both

    def _note_module(self, module: Any, *_: Any) -> None:
        if id(module) not in self.modules and not self.torch.compiler.is_compiling():
            self.modules[id(module)] = weakref.ref(module)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self.tracker is None or self.torch.compiler.is_compiling():
            return
        self.optimizers[id(optimizer)] = weakref.ref(optimizer)
        self._mark_if_new(optimizer)
        self.tracker.spillway_holders_in_optimizer(1)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self.tracker is None or self.torch.compiler.is_compiling():
            return
        self.tracker.spillway_holders_in_optimizer(0)
        self._mark_if_new(optimizer)
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        self.tracker.spillway_holders_stepped(max(self.steps.values()))

    def _mark_if_new(self, optimizer: Any) -> None:
        assert self.tracker is not None
        is_new = self.marked_peaks != self.tracker.spillway_holders_peaks()
        if is_new or self.steps.get(id(optimizer), 0) < FIRST_STEPS:
            self.mark()

    def mark(self) -> None:
        """Tells the tracker which blocks are the model's."""
        library = self.tracker
        if library is None:
            return
        with self.torch._C.DisableTorchFunction():
            found = self._state()
        for kind, addresses in found.items():
            library.spillway_holders_mark((ctypes.c_uint64 * len(addresses))(*addresses), len(addresses), kind)
        library.spillway_holders_marked()
        self.marked_peaks = library.spillway_holders_peaks()

    def _state(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {_STATES: set(), _GRADIENTS: set(), _BUFFERS: set(), _PARAMETERS: set()}
        for module in _alive(self.modules):
            for parameter in [*module._parameters.values()]:  # the program may go on meanwhile
                found[_PARAMETERS] |= addresses_of(self.torch, parameter)
                found[_GRADIENTS] |= self._gradients(parameter)
            for buffer in [*module._buffers.values()]:
                found[_BUFFERS] |= addresses_of(self.torch, buffer)
        has_modules = bool(found[_PARAMETERS])
        for optimizer in _alive(self.optimizers):
            for group in optimizer.param_groups:
                for tensor in group["params"]:
                    # What is no module's is a copy in another precision, or a piece of it, where there are modules.
                    own = addresses_of(self.torch, tensor)
                    found[_STATES if has_modules else _PARAMETERS] |= own - found[_PARAMETERS]
                    found[_GRADIENTS] |= self._gradients(tensor)
            for state in [*optimizer.state.values()]:
                found[_STATES] |= addresses_of(self.torch, state)
        return found

    def _gradients(self, parameter: Any) -> set[int]:
        if not isinstance(parameter, self.torch.Tensor) or not parameter.is_leaf:
            return set()
        # Megatron-LM and others keep gradients of their own.
        return addresses_of(self.torch, [parameter.grad, getattr(parameter, "main_grad", None)])

    def end(self) -> None:
        """Nothing of Python is asked for any more."""
        if self.tracker is not None:
            self.tracker.spillway_holders_stop_asking()

    def forget(self) -> None:
        library, self.tracker = self.tracker, None
        if library is not None:
            library.spillway_holders_told()
            self.torch.cuda.memory._record_memory_history(None)

    def peak(self, device: int) -> dict[str, Any] | None:
        if self.tracker is None:
            return None
        tell = ctypes.PyDLL(self.tracker._name).spillway_holders_json
        tell.restype = ctypes.c_char_p
        told = tell(device)
        return None if told is None else peak_of(json.loads(told.decode(errors="replace")), self.is_own)


def addresses_of(torch: Any, holder: Any) -> set[int]:
    """Where the memory on devices begins that a holder has."""
    found = set()
    for tensor in tensors_of(torch, holder):
        with contextlib.suppress(RuntimeError, NotImplementedError):  # fake, or without storage
            found.add(tensor.untyped_storage().data_ptr())
    return found


def tensors_of(torch: Any, holder: Any, depth: int = 4) -> Iterator[Any]:
    """On devices: a tensor, what a tensor is made of, or a list or dictionary of tensors."""
    if depth == 0 or holder is None:
        return
    if isinstance(holder, dict):
        holder = [*holder.values()]
    if isinstance(holder, list | tuple):
        for each in holder:
            yield from tensors_of(torch, each, depth - 1)
    if not isinstance(holder, torch.Tensor):
        return
    parts = getattr(type(holder), "__tensor_flatten__", None)
    if parts is not None and type(holder) is not torch.nn.Parameter:
        for name in parts(holder)[0]:
            yield from tensors_of(torch, getattr(holder, name), depth - 1)
    elif holder.device.type == "cuda":
        yield holder


def _alive(references: dict[int, weakref.ref[Any]]) -> Iterator[Any]:
    for key, reference in [*references.items()]:
        one = reference()
        if one is None:
            references.pop(key, None)
        else:
            yield one


def peak_of(told: dict[str, Any], is_own: Callable[[str], bool]) -> dict[str, Any]:
    """What a result says of a peak, from what the tracker tells."""
    lines = Lines(told, is_own)
    kinds = dict.fromkeys(KINDS, 0)
    sums: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for row in told["rows"]:
        kinds[row["kind"]] += row["bytes"]
        where, called_at = lines.of(row)
        key = {"where": where, "called_at": called_at, "kind": row["kind"], "phase": lines.phase(row)}
        total = sums.setdefault((*key.values(),), {**key, "bytes": 0, "blocks": 0})
        total["bytes"] += row["bytes"]
        total["blocks"] += row["blocks"]
    rows = sorted(sums.values(), key=lambda row: -row["bytes"])
    moment = told["moment"]
    phase = lines.phase(moment)
    return {
        "requested_bytes": told["bytes"],
        "phase": phase,
        "step": 0 if phase == "load" else moment["steps"] + 1,
        "where": lines.of(moment)[0],
        "kinds": kinds,
        "lines": rows[:MOST_LINES],
        "left_out_bytes": sum(row["bytes"] for row in rows[MOST_LINES:]),
    }


class Lines:
    """Of the stacks of a peak."""

    def __init__(self, told: dict[str, Any], is_own: Callable[[str], bool]) -> None:
        self.frames: list[tuple[str, int, str]] = [tuple(frame) for frame in told["frames"]]
        self.is_own = is_own
        self.packages = tuple({sysconfig.get_paths()[name] for name in ("purelib", "platlib")})
        forward = [row["number"] for row in told["rows"] if self._is_in_module(row)]
        self.forward_began = min(forward, default=sys.maxsize)

    def of(self, row: dict[str, Any]) -> tuple[str, str]:
        """The innermost line that is not PyTorch's, and where it is a package's, the line that called that."""
        own = [frame for frame in map(self.frames.__getitem__, row["stack"]) if self._is_own(frame[0])]
        if not own:
            return f"backward ({row['node']})" if row["node"] else "an unknown line", ""
        called_at = ""
        if own[0][0].startswith(self.packages):
            called_at = next((_line(frame) for frame in own if not frame[0].startswith(self.packages)), "")
        return _line(own[0]), called_at

    def _is_own(self, file: str) -> bool:
        return _OF_C.search(file) is None and self.is_own(file)

    def phase(self, row: dict[str, Any]) -> str:
        if row["in_optimizer"]:
            return "optimizer"
        if row["node"]:
            return "backward"
        # What precedes a loss, or follows it, may stand in no module.
        is_in_step = row["steps"] > 0 or row["number"] >= self.forward_began
        return "forward" if is_in_step or self._is_in_module(row) else "load"

    def _is_in_module(self, row: dict[str, Any]) -> bool:
        calls = (self.frames[number] for number in row["stack"])
        return any(function == "_call_impl" and file.endswith(_MODULE) for file, _, function in calls)


def _line(frame: tuple[str, int, str]) -> str:
    file, line, _ = frame
    return f"{file}:{line}: {linecache.getline(file, line).strip()}"
