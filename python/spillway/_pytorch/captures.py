"""Captures of graphs begin with torch.cuda.empty_cache(), for the graph's pool to find memory.

Spillway's pools are served with what others have free: the memory stays, and nothing of it is created again.
"""

from __future__ import annotations

import functools
from typing import Any

from .._library import library


def keep_memory(torch: Any) -> None:
    enter = torch.cuda.graph.__enter__

    @functools.wraps(enter)
    def enter_with_memory(graph: Any) -> Any:
        library().spw_torch_about_to_capture(1)
        try:
            return enter(graph)
        finally:
            library().spw_torch_about_to_capture(0)

    torch.cuda.graph.__enter__ = enter_with_memory
