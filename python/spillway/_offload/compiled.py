"""Hooks beside torch.compile."""

from __future__ import annotations

from typing import Any

from .._pytorch.install import import_torch


def outside_graphs(function: Any) -> Any:
    """torch.compile runs it as it is, between the graphs before and after it: such functions are not for tracing."""
    return import_torch().compiler.disable(function)


def forget_compiled() -> None:
    """Code that is compiled already runs without hooks that come later: it is compiled anew."""
    import_torch()._dynamo.reset_code_caches()
