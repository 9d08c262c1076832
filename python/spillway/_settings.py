"""PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF: what each key asks for, and what Spillway does about it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._errors import SpillwayError, SpillwayWarning
from ._library import check, library

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

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
}
# Read by PyTorch itself, for its own pinned memory.
PINNED = re.compile(r"pinned_\w+")
GRAPH_REUSE = "graph_capture_record_stream_reuse"
FRACTION = "per_process_memory_fraction"


@dataclass
class Settings:
    fraction: float | None = None
    remarks: list[str] = field(default_factory=list)
    pinned_remarks: list[str] = field(default_factory=list)  # where pinned memory is served too


def read_environment(environment: Mapping[str, str]) -> Settings:
    """Errors: as read()."""
    name = next((variable for variable in VARIABLES if environment.get(variable)), None)
    return Settings() if name is None else read(environment[name], name)


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
        elif key == GRAPH_REUSE:
            settings.remarks.append(f"{source}: {key} changes nothing: under capture blocks wait for the graph's end")
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


def apply_at_start(settings: Settings, pinned_memory: bool) -> None:
    """Spillway's own limit goes before PyTorch's fraction."""
    remark(settings.remarks + (settings.pinned_remarks if pinned_memory else []))
    if settings.fraction is not None and "limit:" not in os.environ.get("SPILLWAY_CONF", ""):
        limit(settings.fraction)


def answer_changes(torch: Any) -> None:
    """From here on, settings that the program changes while it runs are answered as those at its start."""
    native = torch._C._accelerator_setAllocatorSettings

    def set_settings(text: str) -> None:
        settings = read(text, "allocator settings")
        native(text)  # PyTorch's own judgement, and what is for host memory
        remark(settings.remarks)
        if settings.fraction is not None:
            limit(settings.fraction)

    torch._C._accelerator_setAllocatorSettings = set_settings


def remark(lines: list[str]) -> None:
    for line in lines:
        warnings.warn(line, SpillwayWarning, stacklevel=5)


def limit(fraction: float) -> None:
    check(library().spw_conf_set(f"limit:{fraction * 100:g}%".encode()))
