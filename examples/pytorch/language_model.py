"""A small language model and what the examples beside it have in common."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 8000


class LanguageModel(nn.Module):
    """From tokens to the mean loss of predicting each from those before it. recompute: activation checkpointing."""

    def __init__(self, width: int, layers: int, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        states = self.embedding(text[:, :-1])
        for layer in self.layers:
            states = checkpoint(layer, states, use_reentrant=False) if self.recompute else layer(states)
        return nn.functional.cross_entropy(self.head(states).flatten(0, 1), text[:, 1:].flatten())


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that all examples have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--width", type=int, default=512)
    made.add_argument("--layers", type=int, default=6)
    made.add_argument("--batch", type=int, default=8)
    made.add_argument("--length", type=int, default=512)
    made.add_argument("--steps", type=int, default=4)
    return made


def random_text(options: argparse.Namespace) -> torch.Tensor:
    """On the host: one token more than the model reads."""
    return torch.randint(VOCABULARY, (options.batch, options.length + 1))


def print_memory(step: int) -> None:
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"step {step}: peak allocated {allocated >> 20} MiB, reserved {reserved >> 20} MiB")
