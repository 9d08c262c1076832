"""A small language model, a few training steps: an ordinary PyTorch program that knows nothing of Spillway.

spillway run -- python train_transformer.py                           on this machine's GPU
spillway dryrun --gpu-memory 8GiB -- python train_transformer.py      without a GPU: does it fit?
spillway trace-model train_transformer:make_step                      without a GPU: what takes how much, and where?
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from language_model import LanguageModel, parser, print_memory, random_text


def arguments() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--recompute", action="store_true", help="activation checkpointing")
    return made


def make_step(*words: str) -> Callable[[], None]:
    """The model and its optimizer, from the words of a command line; answers what does one step."""
    return training(arguments().parse_args(words))


def training(options: argparse.Namespace) -> Callable[[], None]:
    model = LanguageModel(options.width, options.layers, options.recompute).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        loss = model(random_text(options).cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    options = arguments().parse_args()
    step = training(options)
    for number in range(options.steps):
        step()
        print_memory(number)


if __name__ == "__main__":
    main()
