"""As examples/pytorch/train_transformer.py, and says to Spillway what the bytes of its model and optimizer are.

What calibration.py measures.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import spillway
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "pytorch"))
language_model: Any = importlib.import_module("language_model")


def main() -> None:
    arguments = language_model.parser(__doc__)
    arguments.add_argument("--recompute", action="store_true", help="activation checkpointing")
    options = arguments.parse_args()
    model = language_model.LanguageModel(options.width, options.layers, options.recompute).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(options.steps):
        loss = model(language_model.random_text(options).cuda())
        loss.backward()
        optimizer.step()
        spillway.annotate(model, optimizer)
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
