"""The time that a PyTorch program would take on a GPU, and the memory that it would hold when, from what it enqueues.

Each stream has a clock. An operator occupies its stream for the longer of FLOPs / peak and bytes / bandwidth; a copy
between host and device for bytes / link. A wait of one stream for another sets its clock to the later of the two. The
host is never in the way. FLOPs are those of torch.utils.flop_counter, bytes those of all operands.

Memory is held from when the stream comes to the operator that makes it to when the stream comes to where it is freed,
or a copy from it has ended.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

torch: Any = importlib.import_module("torch")
flops: dict[Any, Any] = importlib.import_module("torch.utils.flop_counter").flop_registry
Mode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
WeakStorage: Any = importlib.import_module("torch.multiprocessing.reductions").StorageWeakRef


@dataclass(frozen=True)
class Gpu:
    """Peaks per ns."""

    flops: float
    bytes: float
    out_bytes: float
    in_bytes: float


# NVIDIA H100 SXM, data sheet: 989 TFLOPS of dense bfloat16, 3.35 TB/s. Of its PCIe 5 link, what one direction reaches
# with pinned memory and large copies: 52 GB/s to the host, 55 GB/s from it.
H100 = Gpu(flops=989e3, bytes=3350, out_bytes=52, in_bytes=55)

MAKES_MEMORY = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty_strided", "aten::set_")


@dataclass
class Held:
    reference: Any
    size: int
    begin: float
    busy_until: float = 0.0  # copies from it


@dataclass
class Times:
    """Of one step, in ns; memory from its begin."""

    step_ns: float
    peak_bytes: int  # above what is held all the time


class Modelled(Mode):  # type: ignore[misc]
    """To be entered around the program. One thread at a time may enqueue work."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu
        self.clocks: dict[int, float] = {}
        self._held: dict[int, Held] = {}
        self._lasting: set[int] = set()
        self._changes: list[tuple[float, int]] = []
        self._begin = 0.0
        self._base = 0
        self.copied: dict[str, int] = {"out": 0, "in": 0}

    def lasts(self, tensors: list[Any]) -> None:
        """These are there all the time, and no matter of the steps' memory."""
        self._lasting |= {tensor.untyped_storage()._cdata for tensor in tensors}

    # ---- Streams

    def now(self, stream: Any = None) -> float:
        return self.clocks.get(key(stream), 0.0)

    def wait(self, stream: Any, until: float) -> None:
        """What is enqueued on `stream` from now on comes after `until`. None is the current stream."""
        self.clocks[key(stream)] = max(self.now(stream), until)

    def copy(self, way: str, size: int, stream: Any = None) -> float:
        """Enqueues a copy "out" of the device or "in" to it; when it ends."""
        bandwidth = self.gpu.out_bytes if way == "out" else self.gpu.in_bytes
        self.clocks[key(stream)] = self.now(stream) + size / bandwidth
        self.copied[way] += size
        return self.now(stream)

    def is_read_until(self, tensor: Any, until: float) -> None:
        held = self._held.get(tensor.untyped_storage()._cdata)
        if held is not None:
            held.busy_until = max(held.busy_until, until)

    # ---- Steps

    def begin_step(self) -> None:
        latest = max(self.clocks.values(), default=0.0)
        self.clocks = dict.fromkeys(self.clocks, latest)
        self._note_freed()
        self._base += sum(change for _, change in self._changes)
        self._changes = []
        self._begin = latest
        self.copied = {"out": 0, "in": 0}

    def end_step(self) -> Times:
        self._note_freed()
        held = most = 0
        for _, change in sorted(self._changes, key=lambda row: row[0]):
            held += change
            most = max(most, held)
        return Times(max(self.clocks.values()) - self._begin, most)

    # ---- Operators

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note_freed()
        if function._schema.name == "aten::copy_" and args[0].device.type != args[1].device.type:
            result = args[0]  # there are no bytes, and the host's need not be touched
        else:
            result = function(*args, **(kwargs or {}))
        inputs = found(args) + found(kwargs or {})
        outputs = found(result)
        begin = self.now()
        if not self._is_free(function, inputs, outputs):
            self._occupy(function, args, kwargs or {}, result, inputs, outputs)
        for tensor in outputs:
            self._note_made(tensor, begin)
        return result

    def _is_free(self, function: Any, inputs: list[Any], outputs: list[Any]) -> bool:
        schema = function._schema
        if schema.name in MAKES_MEMORY or not outputs or not any(each.is_cuda for each in inputs + outputs):
            return True
        places = {tensor.untyped_storage()._cdata for tensor in inputs}
        return not schema.is_mutable and all(tensor.untyped_storage()._cdata in places for tensor in outputs)

    def _occupy(self, function: Any, args: Any, kwargs: Any, result: Any, inputs: Any, outputs: Any) -> None:
        devices = {tensor.device.type for tensor in inputs + outputs if tensor.dim() > 0}
        if len(devices) == 2:
            source = inputs[-1] if function._schema.is_mutable else inputs[0]
            self.copy("out" if source.is_cuda else "in", source.nbytes)
            return
        count = flops[function._overloadpacket](*args, **kwargs, out_val=result) if counts(function) else 0
        size = sum(tensor.nbytes for tensor in inputs + outputs)
        self.clocks[key(None)] = self.now() + max(count / self.gpu.flops, size / self.gpu.bytes)

    # ---- Memory

    def _note_made(self, tensor: Any, begin: float) -> None:
        storage = tensor.untyped_storage()
        if (
            tensor.is_cuda
            and storage.nbytes() > 0
            and storage._cdata not in self._held
            and storage._cdata not in self._lasting
        ):
            self._held[storage._cdata] = Held(WeakStorage(storage), storage.nbytes(), begin)
            self._changes.append((begin, storage.nbytes()))

    def _note_freed(self) -> None:
        for place in [place for place, held in self._held.items() if held.reference.expired()]:
            held = self._held.pop(place)
            self._changes.append((max(self.now(), held.busy_until), -held.size))


def key(stream: Any) -> int:
    number: int = (torch.cuda.current_stream() if stream is None else stream).cuda_stream
    return number


def counts(function: Any) -> bool:
    return function._overloadpacket in flops


def found(holder: Any) -> list[Any]:
    """The tensors in nested lists, tuples and dicts."""
    if isinstance(holder, torch.Tensor):
        return [holder]
    if isinstance(holder, dict):
        holder = list(holder.values())
    if isinstance(holder, list | tuple):
        return [tensor for each in holder for tensor in found(each)]
    return []


@dataclass
class Clock:
    """For offload_activations(clock=): marks are times of the model."""

    model: Modelled

    def mark(self, stream: Any) -> float:
        return self.model.now(stream)

    def is_past(self, mark: float) -> bool:
        return True

    def ns(self, first: float, second: float) -> float:
        return second - first
