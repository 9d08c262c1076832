"""PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF: what each key asks for, and what Spillway does about it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from .._errors import SpillwayError, SpillwayWarning
from .._library import check, get_limit, library, option
from .releases import settings_name

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# Why there is nothing to do.
UNNEEDED = {
    "max_split_size_mb": "blocks are divided and joined at 512 bytes, whatever their size",
    "max_non_split_rounding_mb": "sizes are rounded to 512 bytes only",
    "large_segment_size_mb": "memory is taken in pages of 2 MiB",
    "roundup_power2_divisions": "sizes are not rounded to powers of two",
    "garbage_collection_threshold": "free pages serve any request, so none is collected",
    "expandable_segments": "all memory is mapped page by page already",
    "expandable_segments_reserve": "addresses are reserved as they are needed",
    "expandable_segments_reserve_by_class": "addresses are reserved as they are needed",
    "release_lock_on_cudamalloc": "no lock is held during a call of the driver that blocks",
    "throw_on_cudamalloc_oom": "a request beyond the limit fails without a call of the driver",
    "graph_capture_record_stream_reuse": "a graph uses such memory again as soon as its streams have joined",
}
# Read by PyTorch itself, for its own pinned memory.
PINNED = re.compile(r"pinned_\w+")
FRACTION = "per_process_memory_fraction"
NCCL_HOOK = ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK")


@dataclass
class Settings:
    fraction: float | None = None
    remarks: list[str] = field(default_factory=list)
    pinned_remarks: list[str] = field(default_factory=list)  # where pinned memory is served too


def read_environment(environment: Mapping[str, str]) -> Settings:
    """Errors: as read()."""
    name = variable_of(environment)
    return Settings() if name is None else read(environment[name], name)


def variable_of(environment: Mapping[str, str]) -> str | None:
    """The one that is in force."""
    return next((variable for variable in VARIABLES if environment.get(variable)), None)


def text_of(environment: Mapping[str, str]) -> str:
    name = variable_of(environment)
    return "" if name is None else environment[name]


def check_values(torch: Any, environment: Mapping[str, str]) -> None:
    """By PyTorch itself, which would read them at its first allocation.

    Errors: SpillwayError, for a key or a value that it refuses.
    """
    if (name := variable_of(environment)) is None:
        return
    try:
        getattr(torch._C, settings_name(torch))(environment[name])
    except (ValueError, IndexError, RuntimeError) as problem:
        first_line = str(problem).splitlines()[0]
        raise SpillwayError(f"PyTorch refuses {name}={environment[name]} ({first_line}): correct it") from None


def read(text: str, source: str) -> Settings:
    """Errors: SpillwayError for a setting that contradicts Spillway, or has a wrong value."""
    settings = Settings()
    for key, value in re.findall(r"(\w+)\s*:\s*(\[[^\]]*\]|[^,]*)", text):
        if key == "backend":
            if value.strip() != "native":
                raise SpillwayError(
                    f"{source}: backend:{value.strip()} contradicts Spillway, which takes its place: remove one of them"
                )
        elif key == FRACTION:
            settings.fraction = parse_fraction(value, source)
        elif key in UNNEEDED:
            if value.strip() != "False":
                settings.remarks.append(f"{source}: {key} changes nothing under Spillway: {UNNEEDED[key]}")
        elif PINNED.fullmatch(key):
            settings.pinned_remarks.append(f"{source}: {key} changes nothing: pinned memory is Spillway's too")
        else:
            settings.remarks.append(f"{source}: {key} is not known to Spillway")
    return settings


def parse_fraction(value: str, source: str) -> float:
    try:
        fraction = float(value)
    except ValueError:
        fraction = -1
    if not 0 <= fraction <= 1:
        raise SpillwayError(f"{source}: {FRACTION}:{value.strip()} is not allowed; allowed: a number from 0 to 1")
    return fraction


def apply(torch: Any, settings: Settings, serves_pinned_memory: Callable[[], bool]) -> None:
    """Those of the environment, and from here on those that the program sets while it runs.

    Spillway's own limit goes before PyTorch's fraction.
    """
    is_limited = option("limit") != "unlimited"

    def limit(fraction: float | None) -> None:
        if fraction is not None and not is_limited:
            percent = Decimal(repr(fraction)) * 100
            check(library().spw_conf_set(f"limit:{percent:f}%".encode()))  # options have no exponents

    limit(settings.fraction)
    if is_limited:
        keep_limit(torch)
    native = getattr(torch._C, settings_name(torch))

    def set_settings(text: str) -> None:
        changed = read(text, "allocator settings")
        remark(changed.remarks + (changed.pinned_remarks if serves_pinned_memory() else []))
        native(text)  # PyTorch's own judgement, and what is for host memory
        limit(changed.fraction)

    setattr(torch._C, settings_name(torch), set_settings)
    if not torch.cuda.is_initialized():
        _apply_when_first_used(torch, set_settings)


def _apply_when_first_used(torch: Any, set_settings: Callable[[str], None]) -> None:
    """PyTorch reads the environment when CUDA is first used: what the program put there by then counts."""
    known = text_of(os.environ)
    initialise = torch._C._cuda_init

    def initialise_with_settings() -> None:
        if (text := text_of(os.environ)) and text != known:
            set_settings(text)
        initialise()

    torch._C._cuda_init = initialise_with_settings


def keep_limit(torch: Any) -> None:
    """The limit in force is the most that the program can give itself."""
    native = torch._C._cuda_setMemoryFraction
    limits: dict[int, int] = {}

    def set_fraction(fraction: float, device: int) -> None:
        torch.cuda.synchronize(device)  # PyTorch makes no context before the first block
        most = limits.setdefault(device, get_limit(device))
        native(fraction, device)
        if get_limit(device) > most:
            check(library().spw_set_limit(device, most))

    torch._C._cuda_setMemoryFraction = set_fraction


def registrations(environment: Mapping[str, str]) -> list[str]:
    """The variables by which NCCL is to register segments. It would do so once, and not hear of pages that go:
    PyTorch's expandable ones end this as well."""
    return [name for name in NCCL_HOOK if environment.get(name, "").lower() in ("1", "true", "yes", "y", "on")]


def registration_remark(name: str) -> str:
    return f"{name} changes nothing under Spillway, whose pages come and go: NCCL copies as without it"


def remark(lines: list[str]) -> None:
    for line in lines:
        warnings.warn(line, SpillwayWarning, stacklevel=4)
