"""NVIDIA's libraries, of the installed PyTorch or of the system."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path


def library(name: str) -> ctypes.CDLL:
    """The newest lib<name>.so. Errors: OSError, where there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec is not None else []
    found = sorted(path for folder in folders for path in folder.glob(f"*/lib/lib{name}.so*"))
    return ctypes.CDLL(str(found[-1]) if found else f"lib{name}.so", mode=ctypes.RTLD_GLOBAL)
