"""A small language model, a few training steps: an ordinary PyTorch program that knows nothing of Spillway.

spillway run -- python train_transformer.py                           on this machine's GPU
spillway dryrun --gpu-memory 8GiB -- python train_transformer.py      without a GPU: does it fit?
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, text: torch.Tensor, recompute: bool) -> torch.Tensor:
        states = self.words(text)
        for layer in self.layers:
            states = checkpoint(layer, states, use_reentrant=False) if recompute else layer(states)
        scores: torch.Tensor = self.head(states)
        return scores


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    options = parser.parse_args()
    words = 8000
    model = Model(options.width, options.layers, words).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(options.steps):
        text = torch.randint(words, (options.batch, options.length + 1)).cuda(non_blocking=True)
        scores = model(text[:, :-1], options.recompute)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        print(f"step {step}: peak allocated {allocated >> 20} MiB, reserved {reserved >> 20} MiB")


if __name__ == "__main__":
    main()
