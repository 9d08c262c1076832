"""libspillway's hooks (spillway/torch.h) as an object that PyTorch takes for an allocator."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from .._library import library
from . import releases

SETTERS = {
    "set_init_fn": "spw_torch_init",
    "set_reset_fn": "spw_torch_reset",
    "set_memory_fraction_fn": "spw_torch_memory_fraction",
    "set_base_alloc_fn": "spw_torch_base_alloc",
    "set_record_stream_fn": "spw_torch_record_stream",
    "set_begin_allocate_to_pool": "spw_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "spw_torch_end_pool",
    "set_release_pool": "spw_torch_release_pool",
}

ALL = "spw_torch_alloc"
SEGMENTS = "spw_torch_alloc_segment"

# By alloc hook. What PyTorch was given must outlive its last block.
_made: dict[str, Any] = {}


def serve_pools() -> bool:
    return SEGMENTS in _made


def address(function: Any) -> int:
    value = ctypes.cast(function, ctypes.c_void_p).value
    assert value is not None
    return value


def pluggable(torch: Any, alloc: str) -> Any:
    """One object for each of ALL and SEGMENTS."""
    if alloc in _made:
        return _made[alloc]
    hooks = library()
    made = torch._C._cuda_customAllocator(address(hooks[alloc]), address(hooks["spw_torch_free"]))
    for setter, hook in SETTERS.items():
        getattr(made, setter)(address(hooks[hook]))
    _made[alloc] = made
    return made


def throw_pytorchs_own(torch: Any) -> None:
    """Out of memory is torch.OutOfMemoryError from here on; where PyTorch lacks the names, it stays a RuntimeError."""
    folder = Path(torch.__file__).parent / "lib"
    try:
        vtable = ctypes.c_char.in_dll(ctypes.CDLL(str(folder / "libc10_cuda.so")), releases.OOM_VTABLE)
        construct = ctypes.CDLL(str(folder / "libc10.so"))[releases.ERROR_CONSTRUCTOR]
    except (OSError, ValueError, AttributeError):
        return
    library().spw_torch_throw_as(ctypes.addressof(vtable), address(construct))
