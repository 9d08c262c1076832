#!/usr/bin/env python3
"""Trains a small language model and prints one JSON line: the losses of its steps, and the CPU time of the shortest.

train.py --device cpu
spillway dryrun --gpu-memory 80GiB --values all -- python train.py --device cuda
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from models import LanguageModel, Sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--no-losses", action="store_true", help="look at no value")
    parser.add_argument("--autocast", action="store_true")
    for name, default in (("layers", 2), ("width", 64), ("heads", 4), ("vocabulary", 256), ("experts", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.manual_seed(0)
    sizes = Sizes(options.layers, options.width, options.heads, options.vocabulary, options.experts)
    model = LanguageModel(sizes).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, options.vocabulary, (options.batch, options.length)).to(options.device)
    losses, seconds = [], []
    for _ in range(options.steps):
        began = time.process_time()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.autocast):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not options.no_losses:
            losses.append(loss.item())
        seconds.append(time.process_time() - began)
    print(json.dumps({"losses": losses, "step_ms": round(min(seconds) * 1000, 3)}))


if __name__ == "__main__":
    main()
