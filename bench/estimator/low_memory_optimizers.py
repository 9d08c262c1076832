"""Optimizers that hold less than Adam: gradients that are projected (GaLore, APOLLO), layers in turns (BAdam, LISA).

The first three are their authors' own: galore-torch 1.0, apollo-torch 1.0.3 and badam 1.4. The simulated device has no
cuSOLVER: of GaLore's singular vectors there is memory, and no values.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import random
import sys
from types import ModuleType
from typing import Any

import torch

KINDS = ("galore", "apollo", "badam", "lisa")
Row = dict[str, Any]


def settings(rng: random.Random, kind: str) -> Row:
    if kind in ("galore", "apollo"):
        return {"optimizer": kind, "optimizer_rank": rng.choice([16, 64, 128, 256])}
    return {"optimizer": kind, "layers_at_a_time": 1 if kind == "badam" else rng.choice([1, 2])}


def optimizer_of(row: Row, model: Any) -> torch.optim.Optimizer:
    if row["optimizer"] == "lisa":
        return torch.optim.AdamW(model.parameters(), fused=True)
    if row["optimizer"] == "badam":
        badam = importlib.import_module("badam")
        base = torch.optim.AdamW(model.parameters(), foreach=False)
        # The first layer's gradients pass all others, so its turn takes most.
        with contextlib.redirect_stdout(sys.stderr):  # it says which layer that is
            return badam.BlockOptimizer(  # type: ignore[no-any-return]
                base, list(model.named_parameters()), switch_mode="fixed", start_block=0, verbose=0
            )
    matrices = [weight for name, weight in model.named_parameters() if weight.dim() == 2 and ".layers." in name]
    known = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in known]
    projected: Row = {"params": matrices, "rank": row["optimizer_rank"], "update_proj_gap": 200, "proj_type": "std"}
    if row["optimizer"] == "galore":
        torch.linalg.svd = _singular_vectors
        groups = [{"params": others}, projected | {"scale": 0.25}]
        return _part("galore_torch", "adamw").AdamW(groups, no_deprecation_warning=True)  # type: ignore[no-any-return]
    groups = [{"params": others}, projected | {"scale": 1.0, "proj": "random", "scale_type": "channel"}]
    return _part("apollo_torch", "apollo").AdamW(groups, no_deprecation_warning=True)  # type: ignore[no-any-return]


def take_turn(row: Row, model: Any, step: int) -> None:
    """LISA's: in the first step all layers are trained, whose states stay; then the first ones alone."""
    if row["optimizer"] != "lisa":
        return
    for at, layer in enumerate(model.get_decoder().layers):
        layer.requires_grad_(step == 0 or at < row["layers_at_a_time"])


def _singular_vectors(matrix: torch.Tensor, full_matrices: bool = False) -> tuple[torch.Tensor, ...]:
    assert not full_matrices
    rows, columns = matrix.shape
    count = min(rows, columns)
    return matrix.new_empty(rows, count), matrix.new_empty(count), matrix.new_empty(count, columns)


def _part(package: str, name: str) -> Any:
    """Of a package whose other parts need bitsandbytes."""
    if package not in sys.modules:
        found = importlib.util.find_spec(package)
        assert found is not None and found.submodule_search_locations is not None, f"there is no {package}"
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = list(found.submodule_search_locations)
    return importlib.import_module(f"{package}.{name}")
