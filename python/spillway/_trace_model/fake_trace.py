"""Every birth and death of device memory while a program runs on fake tensors: an allocator's trace without a device.

FakeTensorMode gives each result its size and device but no bytes. A dispatch mode above it sees every operator; the
storages of its results on the device are the allocations, and their finalizers the frees, in the order of the program.

What real tensors do and fake ones do not is put right here:
- The engine of autograd adds gradients in place where it holds the only reference, but never with a dispatch mode
  (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace): the addition is done in place here.
- A product of tensors that are not contiguous gets its bias in place, but not with a dispatch mode
  (aten/src/ATen/native/Linear.cpp): likewise.
- cuBLAS takes workspaces, kernels take temporaries: see kernel_memory.py.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import threading
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import kernel_memory

TORCH = str(Path(torch.__file__).parent)
OWN = str(Path(__file__).parents[1])
# Frames kept for each place of the program, the innermost first.
MOST_FRAMES = 32
FIRST_ADDRESS = 1 << 40
ADDRESS_STEP = 512

Stack = tuple[tuple[CodeType, int], ...]


@dataclass
class Block:
    """One allocation. Roles are told later, by who holds it."""

    address: int
    device: int
    stream: int
    size_bytes: int
    site: int  # index into Recorder.sites
    phase: int  # index into Recorder.phases
    role: str = ""


@dataclass
class Event:
    """A birth or a death."""

    block: Block
    is_free: bool
    phase: int


@dataclass(frozen=True)
class Site:
    """A place of the program. In the backward pass the place of the forward pass that it belongs to."""

    stack: Stack
    note: str = ""

    @property
    def text(self) -> str:
        """The innermost line that is the user's own."""
        if not self.stack:
            return self.note or "an unknown line"
        own = [place for place in self.stack if not is_library(place[0].co_filename)]
        code, line = (own or list(self.stack))[0]
        return f"{code.co_filename}:{line} in {code.co_name}" + (f" ({self.note})" if self.note else "")


@dataclass
class Phase:
    """A stretch of the run: step 0 is the making of the model."""

    step: int
    name: str  # "load", "forward", "backward", "optimizer"


@dataclass
class Finding:
    """What makes the trace inexact, and where."""

    kind: str
    text: str
    counts: dict[str, int] = field(default_factory=dict)  # by place


def is_library(path: str) -> bool:
    return path.startswith((TORCH, OWN, "<frozen")) or _is_standard(path)


@functools.cache
def _is_standard(path: str) -> bool:
    """Of Python's own library, below which some installations have packages."""
    paths = sysconfig.get_paths()
    return path.startswith(paths["stdlib"] + os.sep) and not path.startswith(paths["purelib"] + os.sep)


def stack_here() -> Stack:
    """The Python frames outside of this package, the innermost first."""
    places: list[tuple[CodeType, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(places) < MOST_FRAMES:
        if not frame.f_code.co_filename.startswith(OWN):
            places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(places)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records while it is entered, inside of a FakeTensorMode. All threads that autograd starts are recorded."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.sites: list[Site] = []
        self.phases: list[Phase] = [Phase(0, "load")]
        self.findings: dict[str, Finding] = {}
        self.live_bytes: dict[int, int] = {}
        self.peak_bytes: dict[int, int] = {}
        self._lock = threading.RLock()
        self._site_index: dict[Site, int] = {}
        self._blocks: dict[int, Block] = {}  # by the storage's address
        self._made: dict[int, int] = {}  # forward's site by the sequence number of the node that autograd made
        self._next_address = FIRST_ADDRESS
        self._workspaces: dict[tuple[str, int, int, int], Block] = {}
        self._learning = False
        self._engines: set[tuple[int, int, int]] = set()
        self._linears: set[tuple[int, int, int]] = set()

    # ---- what the program does

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        in_backward = torch._C._current_graph_task_id() != -1
        self._follow(in_backward)
        if in_backward and func is torch.ops.aten.add.Tensor and self._is_engines_sum(args):
            return args[0].add_(args[1])
        if func is torch.ops.aten._pin_memory.default:
            return args[0].detach()  # of the host: not traced, and fake tensors cannot
        read = self._read_value(func, args)
        if read is not None:
            return read[0]
        site = self._site(in_backward)
        if func is torch.ops.aten.add.Tensor and not in_backward and self._is_linears_bias(args):
            return args[0].add_(args[1]).detach()
        result = func(*args, **kwargs)
        on_host = kernel_memory.on_host(func, args, kwargs)
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        for tensor in tree_leaves([output for at, output in enumerate(outputs) if at not in on_host]):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor, site)
        if kernel_memory.uses_cudnn(func, args):
            self.find("cudnn", "cuDNN's workspaces are not counted: it chooses an algorithm on the device")
        temporaries = kernel_memory.temporaries(func, args, kwargs)
        taken = [self._birth(device, size, site) for device, size in temporaries]
        for block in (taken + self._take_workspaces(func, args, kwargs, site))[::-1]:
            self._death(block)
        if func is torch.ops.aten.record_stream.default:
            self._note_other_stream(args[0])
        return result

    def begin(self, step: int, name: str) -> None:
        """From here on what happens belongs to this phase."""
        with self._lock:
            if (self.phases[-1].step, self.phases[-1].name) != (step, name):
                self.phases.append(Phase(step, name))

    def find(self, kind: str, text: str, place: str | None = None) -> None:
        """Notes what makes the trace inexact, once for each place."""
        with self._lock:
            counts = self.findings.setdefault(kind, Finding(kind, text)).counts
            where = place or self.sites[self._site(False)].text
            counts[where] = counts.get(where, 0) + 1

    def resized(self, storage: Any) -> None:
        """A storage changed its size outside of any operator."""
        with self._lock:
            block = self._blocks.get(storage._cdata)
            if block is None:
                return
            self._death(block)
            self._blocks[storage._cdata] = self._birth(block.device, storage.nbytes(), self._site(False))

    def tell(self, tensor: Any, role: str) -> None:
        """What holds the tensor's memory, where it has any on a device; the first word counts."""
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda" and tensor.layout is torch.strided:
            block = self._blocks.get(tensor.untyped_storage()._cdata)
            if block is not None and not block.role:
                block.role = role

    # ---- blocks

    def _note(self, tensor: torch.Tensor, site: int) -> None:
        if tensor.device.type != "cuda" or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                if block.size_bytes != size:
                    self.resized(storage)
                return
            self._blocks[key] = self._birth(tensor.device.index or 0, size, site)
            weakref.finalize(storage, self._storage_died, key).atexit = False  # type: ignore[misc]

    def _storage_died(self, key: int) -> None:
        with self._lock:
            block = self._blocks.pop(key, None)
            if block is not None:
                self._death(block)

    def _birth(self, device: int, size: int, site: int) -> Block:
        with self._lock:
            stream = torch._C._cuda_getCurrentRawStream(device)
            address = self._next_address
            self._next_address += (size + ADDRESS_STEP) // ADDRESS_STEP * ADDRESS_STEP
            block = Block(address, device, stream, size, site, len(self.phases) - 1)
            if size > 0:
                self.events.append(Event(block, False, len(self.phases) - 1))
                live = self.live_bytes[device] = self.live_bytes.get(device, 0) + size
                self.peak_bytes[device] = max(self.peak_bytes.get(device, 0), live)
            return block

    def _death(self, block: Block) -> None:
        with self._lock:
            if block.size_bytes > 0:
                self.events.append(Event(block, True, len(self.phases) - 1))
                self.live_bytes[block.device] -= block.size_bytes

    def _take_workspaces(self, func: Any, args: Any, kwargs: Any, site: int) -> list[Block]:
        """cuBLAS's. Returns those that the operator gives back, which PyTorch does not keep."""
        given_back: list[Block] = []
        for library, device, size in kernel_memory.workspaces(func, args, kwargs):
            key = (library, threading.get_ident(), device, torch._C._cuda_getCurrentRawStream(device))
            if key in self._workspaces:
                continue
            block = self._birth(device, size, site)
            block.role = "workspaces"
            if kernel_memory.blas().are_kept:
                self._workspaces[key] = block
            else:
                given_back.append(block)
        return given_back

    def _note_other_stream(self, tensor: torch.Tensor) -> None:
        if tensor.untyped_storage()._cdata in self._blocks:
            self.find(
                "record-stream",
                "blocks that other streams use are freed at once here; on a device, once those are done",
            )

    def calibrate(self) -> None:
        """Learns how many references there are to a tensor that PyTorch alone holds, while it is added to.

        To be called once, inside of both modes, before the program runs; leaves nothing recorded.
        """
        self._learning = True
        weight = torch.ones(2, 2, device="cuda", requires_grad=True)
        bias = torch.ones(2, device="cuda", requires_grad=True)
        (weight.exp() * 1 + weight.sin() * 1).sum().backward()  # type: ignore[no-untyped-call]
        states = torch.ones(2, 3, 2, device="cuda").transpose(0, 1)
        torch.nn.functional.linear(states, weight, bias)
        with torch.no_grad():
            torch.nn.functional.linear(states, weight, bias)
        self._learning = False
        del weight, bias, states
        self.events.clear()
        self.sites.clear()
        self._site_index.clear()
        self._made.clear()
        self._workspaces.clear()
        self.live_bytes.clear()
        self.peak_bytes.clear()

    def _is_engines_sum(self, args: Any) -> bool:
        """The engine adds to a gradient that it alone holds: what it does in place on real tensors."""
        return (
            self._is_held_by_nobody_else(args[0], self._engines)
            and isinstance(args[1], torch.Tensor)
            and not torch.is_grad_enabled()
            and args[0].dtype == args[1].dtype
            and args[0].shape == args[1].shape
            and torch._prims_common.is_non_overlapping_and_dense_or_false(args[0])
            and not any(not is_library(code.co_filename) for code, _ in stack_here())
        )

    def _is_linears_bias(self, args: Any) -> bool:
        """aten/src/ATen/native/Linear.cpp adds the bias in place, but to a tensor of a subclass out of place."""
        return (
            isinstance(args[1], torch.Tensor)
            and args[1].dim() == 1
            and args[0].dim() > 1
            and args[1].shape[0] == args[0].shape[-1]
            and args[0].dtype == args[1].dtype
            and self._is_held_by_nobody_else(args[0], self._linears)
        )

    def _is_held_by_nobody_else(self, tensor: torch.Tensor, known: set[tuple[int, int, int]]) -> bool:
        counts = _references(tensor)
        if self._learning:
            known.add(counts)
        return counts in known

    # ---- where and when

    def _follow(self, in_backward: bool) -> None:
        """The phase that the operator is in; optimizers and steps say themselves when theirs begin."""
        last = self.phases[-1]
        if last.step > 0 and last.name in ("forward", "backward") and in_backward != (last.name == "backward"):
            self.begin(last.step, "backward" if in_backward else "forward")

    def _site(self, in_backward: bool) -> int:
        stack = stack_here()
        if in_backward and not any(not is_library(code.co_filename) for code, _ in stack):
            node = torch._C._current_autograd_node()
            made = None if node is None else self._made.get(node._sequence_nr())
            forward = Site(()) if made is None else self.sites[made]
            return self._index(Site(forward.stack, "backward" if node is None else f"backward, {node.name()}"))
        index = self._index(Site(stack))
        if torch.is_grad_enabled():
            self._made[torch._C._autograd._get_sequence_nr() - 1] = index
        return index

    def _index(self, site: Site) -> int:
        with self._lock:
            index = self._site_index.setdefault(site, len(self.sites))
            if index == len(self.sites):
                self.sites.append(site)
            return index

    def _read_value(self, func: Any, args: Any) -> tuple[Any] | None:
        """What the program is told where it asks for a value that nobody computed."""
        if func is not torch.ops.aten._local_scalar_dense.default:
            return None
        tensor = args[0]
        constant = getattr(tensor, "constant", None)
        if constant is not None and constant.device.type == "cpu":
            return None  # the program's own number; a device that is simulated computes none
        self.find(
            "value-read", "a value that nobody computed was read, and 0 (False) taken: the program may go another way"
        )
        if tensor.dtype is torch.bool:
            return (False,)
        return (0.0,) if tensor.dtype.is_floating_point else (0,)


def _references(tensor: torch.Tensor) -> tuple[int, int, int]:
    storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return tensor._use_count(), storage, sys.getrefcount(tensor)  # type: ignore[attr-defined]
