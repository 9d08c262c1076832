"""Tensors whose bytes are away with their region, and that anybody may ask for something all the same.

While its region is elsewhere, such an object is of a class of its own, a kind of what it was: whatever PyTorch is asked
to do with it, but to say what it is (its shape, say), brings the region back first. It stays the same object, so that
modules, optimizers and hooks notice nothing. What shows its memory otherwise, as a view that was made before, is not
protected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from .._pytorch.install import import_torch

# These look at no memory, and show none to others.
GETTERS = """shape dtype device layout requires_grad grad _grad grad_fn is_leaf ndim is_cuda is_cpu is_meta is_sparse
    is_sparse_csr is_quantized is_mkldnn is_nested is_xla is_xpu is_mps names nbytes itemsize retains_grad output_nr
    _version _base _backward_hooks _post_accumulate_grad_hooks"""
SETTERS = "requires_grad grad _grad _backward_hooks _post_accumulate_grad_hooks"
METHODS = """size stride numel nelement dim ndimension element_size storage_offset is_contiguous is_floating_point
    is_complex is_signed is_inference is_conj is_neg get_device register_hook register_post_accumulate_grad_hook
    retain_grad requires_grad_ __hash__ __len__ _is_view"""

_bringers: dict[int, Callable[[], None]] = {}  # by id of the tensor


def leave(tensors: Iterable[Any], bring: Callable[[], None]) -> None:
    """From now on whoever uses one of them has `bring` called, which says come() of all that came."""
    for tensor in tensors:
        kind: Any = type(tensor)
        away = away_kind(kind)
        if away is not None:
            _bringers[id(tensor)] = bring
            tensor.__class__ = away


def come(tensors: Iterable[Any]) -> None:
    """They are what they were. Again is ok."""
    for tensor in tensors:
        if isinstance(tensor, Away):
            tensor.__class__ = type(tensor).__bases__[1]
            _bringers.pop(id(tensor), None)


class Away:
    """Of tensors that are away."""

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        torch = import_torch()
        if function in harmless():
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Away):
                bring(leaf)
        return function(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: Any) -> Any:
        bring(self)
        return self.__deepcopy__(memo)  # another class's by now

    def __reduce_ex__(self, protocol: Any) -> Any:
        bring(self)
        return self.__reduce_ex__(protocol)


def bring(tensor: Any) -> None:
    """Errors: SpillwayError, torch.OutOfMemoryError, and it stays away."""
    bringer = _bringers.get(id(tensor))
    if bringer is not None:
        bringer()
    come([tensor])


@functools.cache
def away_kind(kind: Any) -> Any:
    """None, where what PyTorch does with it is the class's own to say."""
    torch = import_torch()
    of_tensors = torch.Tensor.__torch_function__.__func__
    function = kind.__torch_function__
    is_ordinary = function is torch._C._disabled_torch_function_impl or getattr(function, "__func__", 0) is of_tensors
    if issubclass(kind, Away) or not is_ordinary:
        return None
    return type(kind)(kind.__name__, (Away, kind), {"__slots__": (), "__module__": kind.__module__})


@functools.cache
def harmless() -> frozenset[Any]:
    tensor = import_torch().Tensor
    found = {getattr(tensor, name, None) for name in METHODS.split()}
    for name in GETTERS.split():
        found.add(getattr(getattr(tensor, name, None), "__get__", None))
    for name in SETTERS.split():
        found.add(getattr(getattr(tensor, name, None), "__set__", None))
        found.add(getattr(getattr(tensor, name, None), "__delete__", None))
    return frozenset(found - {None})
