"""A training that needs more than 8 GiB, for docs/out-of-memory.md; --recompute is what makes it fit."""

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, DEPTH, BATCH, LENGTH = 1024, 12, 16, 1024
RECOMPUTE = "--recompute" in sys.argv


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, states: torch.Tensor) -> Any:
        if RECOMPUTE:
            return states + checkpoint(self.inside, states, use_reentrant=False)
        return states + self.inside(states)


model = nn.Sequential(*[Block() for _ in range(DEPTH)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    batch = torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
