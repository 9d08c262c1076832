"""Every birth and death of device memory while a program runs on fake tensors: an allocator's trace without a device.

FakeTensorMode gives each result its size and device but no bytes. A dispatch mode above it sees every operator; the
storages of its results on the device are the allocations, and their finalizers the frees, in the order of the program.

What real tensors do and fake ones do not is put right here:
- The engine of autograd adds gradients in place where it holds the only reference, but never with a dispatch mode
  (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace): the addition is done in place here.
- A product of tensors that are not contiguous gets its bias in place, but not with a dispatch mode
  (aten/src/ATen/native/Linear.cpp): likewise.
- Gradients of what was picked by indices are put into new zeros in place, but not into those of a subclass
  (torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native/TensorAdvancedIndexing.cpp): likewise.
- cuBLAS takes workspaces, kernels take temporaries: see kernel_memory.py.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from .._holders import tensors_of
from . import bounds, kernel_memory
from .host_values import HostValues
from .recording import Block, Recording, Site, is_library, stack_here

aten = torch.ops.aten
# What derivatives do to new zeros.
INTO_ZEROS = {
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
    aten._unsafe_index_put.default: aten.index_put_.default,
}
ADD_UP_BY_INDICES = frozenset((aten.index_put.default, aten._unsafe_index_put.default))
FIRST_ADDRESS = 1 << 40
ADDRESS_STEP = 512


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    """Its elements lie without gaps and overlaps, in some order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class Recorder(Recording, TorchDispatchMode):
    """Records while it is entered, inside of a FakeTensorMode. All threads that autograd starts are recorded."""

    def __init__(self, share: float | None = None) -> None:
        """`share`: what results whose size depends on values have, of the most they could; none: they are refused."""
        Recording.__init__(self)
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self._share = share
        self._host_values = HostValues()
        self._blocks: dict[int, Block] = {}  # by the storage's address
        self._made: dict[int, int] = {}  # forward's site by the sequence number of the node that autograd made
        self._next_address = FIRST_ADDRESS
        self._workspaces: dict[tuple[str, int, int, int], Block] = {}
        self._learning = False
        self._engines: set[tuple[int, int, int]] = set()
        self._linears: set[tuple[int, int, int]] = set()
        self._zeros: set[tuple[int, int, int]] = set()

    # ---- what the program does

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind is not FakeTensor for kind in types):
            return NotImplemented  # tensors made of others do with those what they do
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if self._host_values.are_known(func, args, kwargs):
            with _disable_current_modes():
                return func(*args, **kwargs)
        in_backward = torch._C._current_graph_task_id() != -1
        self._follow(in_backward)
        if in_backward and func is torch.ops.aten.add.Tensor and self._is_engines_sum(args):
            return args[0].add_(args[1])
        if in_backward and func in INTO_ZEROS and self._is_derivatives_zeros(func, args):
            func = INTO_ZEROS[func]
        if func is torch.ops.aten._pin_memory.default:
            return args[0].detach()  # of the host: not traced, and fake tensors cannot
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # a fake result would be another one
        read = self._read_value(func, args)
        if read is not None:
            return read[0]
        site = self._site(in_backward)
        if func is torch.ops.aten.add.Tensor and not in_backward and self._is_linears_bias(args):
            return args[0].add_(args[1]).detach()
        result = self._result(func, args, kwargs, site)
        if kept := kernel_memory.kept_bytes(func, args, kwargs):
            result.untyped_storage().resize_(kept)
        on_host = kernel_memory.on_host(func, args, kwargs)
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        for tensor in tree_leaves([output for at, output in enumerate(outputs) if at not in on_host]):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor, site)
        if kernel_memory.uses_cudnn(func, args):
            self.find_here("cudnn", "cuDNN's workspaces are not counted: it chooses an algorithm on the device")
        temporaries = kernel_memory.temporaries(func, args, kwargs)
        taken = [self._birth(device, size, site) for device, size in temporaries]
        for block in (taken + self._take_workspaces(func, args, kwargs, site))[::-1]:
            self.death(block)
        if func is torch.ops.aten.record_stream.default:
            self._note_other_stream(args[0])
        return result

    def _result(self, func: Any, args: Any, kwargs: Any, site: int) -> Any:
        if self._share is None or not bounds.is_sized_by_values(func, args):
            return func(*args, **kwargs)
        self.find_here(
            "value-size",
            f"results whose size depends on values were taken to have {self._share:.4g} of the most that they could",
        )
        return bounds.bounded(func, args, kwargs, self._share, lambda tensor: self._note(tensor, site))

    def find_here(self, kind: str, text: str) -> None:
        with self._lock:
            self.find(kind, text, self.sites[self._site(False)].text)

    def resized(self, storage: Any) -> None:
        """A storage changed its size outside of any operator."""
        with self._lock:
            block = self._blocks.get(storage._cdata)
            if block is None:
                return
            self.death(block)
            self._blocks[storage._cdata] = self._birth(block.device, storage.nbytes(), self._site(False))

    def tell(self, holder: Any, role: str) -> None:
        """What the holder's memory is, where it has any on a device; the first word counts."""
        for tensor in tensors_of(torch, holder):
            if tensor.layout is torch.strided:
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
                self.death(block)

    def _birth(self, device: int, size: int, site: int) -> Block:
        with self._lock:
            stream = torch._C._cuda_getCurrentRawStream(device)
            address = self._next_address
            self._next_address += (size + ADDRESS_STEP) // ADDRESS_STEP * ADDRESS_STEP
            block = Block(address, device, stream, size, site, len(self.phases) - 1)
            self.birth(block)
            return block

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
            self.find_here(
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
        picked = torch.zeros(2, dtype=torch.int64, device="cuda")
        table = torch.ones(2, 2, device="cuda", requires_grad=True)
        for result in (table.gather(0, picked[None]), table.index_select(0, picked), table[picked], table.max(1)[0]):
            result.sum().backward()  # type: ignore[no-untyped-call]
        states = torch.ones(2, 3, 2, device="cuda").transpose(0, 1)
        torch.nn.functional.linear(states, weight, bias)
        with torch.no_grad():
            torch.nn.functional.linear(states, weight, bias)
        self._learning = False
        del weight, bias, states, picked, table, result
        self.forget()
        self._made.clear()
        self._workspaces.clear()

    def _is_engines_sum(self, args: Any) -> bool:
        """The engine adds to a gradient that it alone holds: what it does in place on real tensors."""
        return (
            self._is_held_by_nobody_else(args[0], self._engines)
            and isinstance(args[1], torch.Tensor)
            and not torch.is_grad_enabled()
            and args[0].dtype == args[1].dtype
            and args[0].shape == args[1].shape
            and _fills_its_memory(args[0])
            and not any(not is_library(file) for file, _, _ in stack_here())
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

    def _is_derivatives_zeros(self, func: Any, args: Any) -> bool:
        """What is not added up by indices is a gradient, a part of which becomes zero in a copy."""
        adds_up = func not in ADD_UP_BY_INDICES or (len(args) > 3 and args[3])
        return adds_up and not torch.is_grad_enabled() and self._is_held_by_nobody_else(args[0], self._zeros)

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
        if in_backward and not any(not is_library(file) for file, _, _ in stack):
            node = torch._C._current_autograd_node()
            made = None if node is None else self._made.get(node._sequence_nr())
            forward = Site(()) if made is None else self.sites[made]
            return self.index(Site(forward.stack, "backward" if node is None else f"backward, {node.name()}"))
        index = self.index(Site(stack))
        if torch.is_grad_enabled():
            self._made[torch._C._autograd._get_sequence_nr() - 1] = index
        return index

    def _read_value(self, func: Any, args: Any) -> tuple[Any] | None:
        """What the program is told where it asks for a value that nobody computed."""
        if func is not torch.ops.aten._local_scalar_dense.default:
            return None
        tensor = args[0]
        constant = getattr(tensor, "constant", None)
        if constant is not None and constant.device.type == "cpu":
            return None  # the program's own number; a device that is simulated computes none
        self.find_here(
            "value-read", "a value that nobody computed was read, and 0 (False) taken: the program may go another way"
        )
        if tensor.dtype is torch.bool:
            return (False,)
        return (0.0,) if tensor.dtype.is_floating_point else (0,)


def _references(tensor: torch.Tensor) -> tuple[int, int, int]:
    storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return tensor._use_count(), storage, sys.getrefcount(tensor)  # type: ignore[attr-defined]
