#!/usr/bin/env python3
"""Losses of a training whose saved activations are kept at eight bits, beside the same training without; prints JSON.

A small transformer learns to predict the bytes of this project's documentation, on the host, where kernels compute.
Hooks for saved tensors pack and unpack as offload_activations(int8=...) does, with the same code. A tenth of the text
is for the loss at the end. To be run by the Python of .venv, with the simulated libraries or on a machine with CUDA.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulated import ROOT, enter

WIDTH, LAYERS, LENGTH, BATCH = 64, 3, 64, 8
STEPS, SEEDS, EVERY = 300, 2, 50
LEAST_BYTES = 1024
# These are kept at eight bits, by pattern of module names as for offload_activations().
CHOICES: dict[str, Sequence[str]] = {
    "none": (),
    "mlp": ("*.mlp",),
    "all": ("layers.*",),
}


def make_model(torch: Any) -> Any:
    bench: Any = importlib.import_module("activation_offload")
    nn = torch.nn

    class Predictor(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.layers = bench.layers_of(torch, WIDTH, LAYERS, 16)
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

        def forward(self, x: Any) -> Any:
            x = self.bytes(x) + self.places.weight
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    return Predictor()


class EightBits:
    """Hooks around the forward pass of chosen modules."""

    def __init__(self, torch: Any, model: Any, patterns: Sequence[str]) -> None:
        activations: Any = importlib.import_module("spillway._offload.activations")
        self._codec: Any = importlib.import_module("spillway._offload.eight_bits")
        self._torch = torch
        self._own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self.packed = 0
        for module in activations.matching(model, patterns).values():
            module.forward = self._around(module.forward)

    def _around(self, forward: Any) -> Any:
        def hooked(*arguments: Any) -> Any:
            with self._torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                return forward(*arguments)

        return hooked

    def _pack(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata in self._own or tensor.nbytes < LEAST_BYTES or not self._codec.serves(tensor):
            return tensor
        self.packed += 1
        numbers = self._codec.numbers_of(tensor)
        place = (tensor.storage_offset(), tensor.shape, tensor.stride())
        return self._codec.pack(numbers), numbers.numel(), tensor.dtype, place

    def _unpack(self, packed: Any) -> Any:
        if isinstance(packed, self._torch.Tensor):
            return packed
        eight, count, dtype, place = packed
        storage = self._codec.unpack(eight, count, dtype).untyped_storage()
        return self._torch.empty(0, dtype=dtype).set_(storage, *place)


def train(torch: Any, text: Any, patterns: Sequence[str], seed: int, steps: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = make_model(torch)
    eight = EightBits(torch, model, patterns) if patterns else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    learned, held_out = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]

    def loss_of(source: Any, begins: Any) -> Any:
        rows = torch.stack([source[begin : begin + LENGTH + 1] for begin in begins])
        return torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    curve, recent = [], []
    for step in range(steps):
        loss = loss_of(learned, torch.randint(len(learned) - LENGTH, (BATCH,)).tolist())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.item())
        if (step + 1) % EVERY == 0:
            curve.append(round(sum(recent) / len(recent), 4))
            recent = []
    with torch.no_grad():
        begins = range(0, len(held_out) - LENGTH, LENGTH)
        parts = [loss_of(held_out, begins[first : first + BATCH]).item() for first in range(0, len(begins), BATCH)]
    packed = 0 if eight is None else eight.packed // steps
    return {"curve": curve, "held_out_loss": sum(parts) / len(parts), "packed_in_a_step": packed}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"default: {STEPS}")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"default: {SEEDS}")
    options = parser.parse_args()
    if options.steps < 1 or options.seeds < 1:
        parser.error("--steps and --seeds: at least 1")
    enter(options.build.resolve())
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)  # such small matrices gain nothing by more
    text = torch.tensor(list(b"".join(path.read_bytes() for path in sorted((ROOT / "docs").rglob("*.md")))))
    rows = []
    for seed in range(options.seeds):
        for name, patterns in CHOICES.items():
            row = {"eight_bits": name, "seed": seed, **train(torch, text, patterns, seed, options.steps)}
            print(f"seed {seed}, {name}: {row['held_out_loss']:.4f}", file=sys.stderr)
            rows.append(row)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
