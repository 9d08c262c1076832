"""The profile that `spillway doctor --probe` found this machine's driver to deserve.

What it kept is described in cli/doctor/verdicts.h, where drivers are named by the same rule.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
from pathlib import Path
from typing import Any

from .. import _cache
from .._errors import SpillwayError
from .._library import check, library

KEPT = "driver-profiles.json"
PROFILES = ("ordinary", "careful", "plain")  # each gives up more


def follow() -> list[str]:
    """Takes it, unless the user names one; what there is to say about that. Where nothing was kept, a look at the file
    system is all."""
    kept = _cache.find(KEPT)
    if kept is None or is_named() or (driver := driver_name()) is None:
        return []
    found = {device: word for device, word in verdicts(kept, driver).items() if word in PROFILES}
    device = max(found, key=lambda name: PROFILES.index(found[name]), default="")
    if not device or found[device] == PROFILES[0]:
        return []
    what = f"profile:{found[device]}, which the driver {driver} deserves with {device} (spillway doctor --probe)"
    try:
        check(library().spw_conf_set(f"profile:{found[device]}".encode()))
    except SpillwayError as problem:
        return [f"without {what}: {problem}"]
    return [f"{what}, is in force; SPILLWAY_CONF=profile:ordinary goes without"]


def is_named() -> bool:
    """Whether the environment's configuration has a profile."""
    texts = [os.environ.get("SPILLWAY_CONF", "")]
    if file := os.environ.get("SPILLWAY_CONF_FILE"):
        with contextlib.suppress(OSError):  # the library says so
            texts.append(re.sub("#.*", "", Path(file).read_text(errors="replace")))
    return any(re.search(r"(?:^|[,\n])\s*profile\s*:", text) for text in texts)


def verdicts(kept: Path, driver: str) -> dict[str, str]:
    """By device. Whatever is not as it was written counts as nothing."""
    try:
        found: Any = json.loads(kept.read_bytes())["drivers"][driver]
        return {str(device): word for device, word in found.items() if isinstance(word, str)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def driver_name() -> str | None:
    """Without a device that is used: what is forked later could not use one then."""
    named = os.environ.get("SPILLWAY_LIBCUDA")
    version = ctypes.c_int()
    try:
        if ctypes.CDLL(named or "libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    kernel = "" if named else kernel_version()
    return f"{kernel}{kernel and ', '}CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def kernel_version() -> str:
    try:
        line = Path("/proc/driver/nvidia/version").read_text(errors="replace").partition("\n")[0]
    except OSError:
        return ""
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", line)
    return found.group() if found else ""
