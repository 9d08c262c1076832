"""Models of plain PyTorch for the runs in this folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 256
    experts: int = 0  # none: a dense feed-forward layer
    chosen: int = 2


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.into = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.into(x).chunk(3, -1)
        query, key, value = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Experts(nn.Module):
    """As Mixtral's: every token goes to the few experts that its router prefers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.chosen = sizes.chosen
        self.router = nn.Linear(sizes.width, sizes.experts, bias=False)
        self.experts = nn.ModuleList(feed_forward(sizes) for _ in range(sizes.experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, picked = torch.topk(self.router(tokens).softmax(-1), self.chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            token, place = torch.where(picked == index)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(tokens[token]) * weights[token, place, None])
        return out.view_as(x)


def feed_forward(sizes: Sizes) -> nn.Module:
    return nn.Sequential(nn.Linear(sizes.width, 4 * sizes.width), nn.GELU(), nn.Linear(4 * sizes.width, sizes.width))


class Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.attention = Attention(sizes)
        self.forward_part = Experts(sizes) if sizes.experts else feed_forward(sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        out: torch.Tensor = x + self.forward_part(self.second(x))
        return out


class LanguageModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
