"""libspillway, loaded once, with the types of the functions that the package calls."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

from ._errors import SpillwayError

SONAME = "libspillway.so.0"
HERE = Path(__file__).resolve().parent


CHECKOUT = HERE.parents[1]  # where this is one


def installed(part: str) -> Path | None:
    """A part of the package that was built. Where it is installed as editable, its Python stays in the checkout, and
    what was built is in the environment: the folders of the package are both."""
    folders = [HERE, *map(Path, sys.modules[__package__ or "spillway"].__path__)]
    return next((folder / part for folder in folders if (folder / part).exists()), None)


def part(installed_as: str, checked_out_as: str) -> Path:
    """In the package, or in a checkout. Errors: SpillwayError."""
    if found := installed(installed_as):
        return found
    if (CHECKOUT / checked_out_as).exists():
        return CHECKOUT / checked_out_as
    raise SpillwayError(f"the package in {HERE} is incomplete: it lacks {installed_as}; install it again")


def include_folder() -> Path:
    """Where spillway/spillway.h is."""
    header = "include/spillway/spillway.h"
    return part(header, header).parents[1]


def library_path() -> Path:
    """$SPILLWAY_LIBRARY, or the library of the wheel, or the one built in a checkout."""
    named = os.environ.get("SPILLWAY_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise SpillwayError(f"SPILLWAY_LIBRARY names no file: {named}")
        return Path(named)
    try:
        return part(f"lib/{SONAME}", f"build/release/lib/{SONAME}")
    except SpillwayError as problem:
        raise SpillwayError(f"{problem}, or set SPILLWAY_LIBRARY") from None


def open_library() -> ctypes.CDLL:
    """The one that is in the process already, by its soname: that of the preload library, or of a program that embeds
    Python. A second one would have a second cache. Else library_path()."""
    try:
        return ctypes.CDLL(SONAME, mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)
    except OSError:
        path = library_path()
    try:
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as problem:
        raise SpillwayError(f"{path} cannot be loaded: {problem}") from None


def path_of(loaded: ctypes.CDLL) -> str:
    """Of its file, as the dynamic loader knows it."""
    function = ctypes.cast(loaded.spw_version, ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, file = line.split(maxsplit=5)
        begin, end = (int(address, 16) for address in addresses.split("-"))
        if begin <= function < end:
            return file
    return SONAME


def check_version(loaded: ctypes.CDLL) -> None:
    """What is built against a release runs with later ones of its series (docs/embedding.md), as this package does."""
    from . import __version__

    wanted = [int(part) for part in __version__.split(".")]
    series = 2 if wanted[0] == 0 else 1  # before 1.0 a minor version may change anything
    version = loaded.spw_version().decode()
    found = [int(part) for part in version.split(".")]
    if found[:series] != wanted[:series] or found < wanted:
        raise SpillwayError(
            f"{path_of(loaded)} is Spillway {version}, and this package ({HERE}) is {__version__}: a process has one"
            " Spillway, so install the same version for both"
        )


@functools.cache
def library() -> ctypes.CDLL:
    """Its symbols are global: the extension for PyTorch finds them there."""
    loaded = open_library()
    loaded.spw_version.restype = ctypes.c_char_p
    check_version(loaded)
    loaded.spw_last_error.restype = ctypes.c_char_p
    loaded.spw_conf_set.argtypes = [ctypes.c_char_p]
    loaded.spw_set_limit.argtypes = [ctypes.c_int, ctypes.c_uint64]
    loaded.spw_get_limit.argtypes = [ctypes.c_int, ctypes.c_void_p]
    loaded.spw_conf_get.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    loaded.spw_memory_info.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    loaded.spw_untaken_memory_info.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    loaded.spw_annotate.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64]
    loaded.spw_annotation.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p]
    loaded.spw_trace_mark.argtypes = [ctypes.c_char_p]
    loaded.spw_trace_tag.argtypes = [ctypes.c_char_p]
    loaded.spw_torch_throw_as.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    loaded.spw_validate.argtypes = [ctypes.c_int]
    loaded.spw_dump.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    return loaded


def option(name: str) -> str:
    """The value in force of an option of SPILLWAY_CONF."""
    text = ctypes.create_string_buffer(64)
    check(library().spw_conf_get(name.encode(), text, len(text), None))
    return text.value.decode()


def is_set(name: str) -> bool:
    """Whether an option of SPILLWAY_CONF that is a text has one."""
    needed = ctypes.c_size_t()
    check(library().spw_conf_get(name.encode(), None, 0, ctypes.byref(needed)))
    return needed.value > 1


def get_limit(device: int) -> int:
    """In bytes; 2**64 - 1 where there is none."""
    limit = ctypes.c_uint64()
    check(library().spw_get_limit(device, ctypes.byref(limit)))
    return limit.value


def check(status: int) -> None:
    if status != 0:
        raise SpillwayError(library().spw_last_error().decode(errors="replace"))
