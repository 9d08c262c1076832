"""Hooks beside torch.compile."""

from __future__ import annotations

from typing import Any

from . import _install


def outside_graphs(function: Any) -> Any:
    """torch.compile runs it as it is, between the graphs before and after it: such functions are not for tracing."""
    return _install.import_torch().compiler.disable(function)


def forget_compiled() -> None:
    """Code that is compiled already runs without hooks that come later: it is compiled anew."""
    _install.import_torch()._dynamo.reset_code_caches()
