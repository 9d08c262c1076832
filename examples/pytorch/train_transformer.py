"""A small language model, a few training steps: an ordinary PyTorch program that knows nothing of Spillway.

spillway run -- python train_transformer.py                           on this machine's GPU
spillway dryrun --gpu-memory 8GiB -- python train_transformer.py      without a GPU: does it fit?
"""

from __future__ import annotations

import torch
from language_model import LanguageModel, parser, print_memory, random_text


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--recompute", action="store_true", help="activation checkpointing")
    options = arguments.parse_args()
    model = LanguageModel(options.width, options.layers, options.recompute).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(options.steps):
        loss = model(random_text(options).cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print_memory(step)


if __name__ == "__main__":
    main()
