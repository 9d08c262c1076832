"""A training whose memory grows with every step, for docs/growing-memory.md; --detach is what stops that."""

import sys

import torch
from torch import nn

DETACH = "--detach" in sys.argv
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
total = torch.zeros((), device="cuda")
for _ in range(12):
    batch = torch.randn(4096, 1024, device="cuda")
    loss = model(batch).square().mean()
    penalty = model(0.5 * batch).abs().mean()
    loss.backward()
    total += penalty.detach() if DETACH else penalty
    optimizer.step()
    optimizer.zero_grad()
print(f"mean penalty {total.item() / 12:.3f}")
