"""A small decoder that generates text, with a cache of keys and values that grows by a token each step.

spillway run -- python generate.py
spillway dryrun --gpu-memory 8GiB -- python generate.py

Each cache is made anew one token longer (torch.cat), so no size comes back before the next request begins.
"""

from __future__ import annotations

import torch
from language_model import VOCABULARY, parser, print_memory
from torch import nn

Cache = dict[str, torch.Tensor]


class DecoderLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: torch.Tensor, cache: Cache) -> torch.Tensor:
        projected = self.queries_keys_values(self.attention_norm(states))
        queries, keys, values = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        is_prompt = not cache
        if not is_prompt:
            keys, values = torch.cat([cache["keys"], keys], dim=2), torch.cat([cache["values"], values], dim=2)
        cache["keys"], cache["values"] = keys, values
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=is_prompt)
        states = states + self.projection(attended.transpose(1, 2).flatten(2))
        transformed: torch.Tensor = self.feed_forward(self.feed_forward_norm(states))
        return states + transformed


class Decoder(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor, caches: list[Cache]) -> torch.Tensor:
        states = self.embedding(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            states = layer(states, cache)
        following: torch.Tensor = self.head(states[:, -1:]).argmax(-1)
        return following


@torch.inference_mode()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tokens", type=int, default=64, help="to generate after each prompt")
    options = arguments.parse_args()
    model = Decoder(options.width, options.layers).cuda()
    for step in range(options.steps):
        tokens = torch.randint(VOCABULARY, (options.batch, options.length)).cuda()
        caches: list[Cache] = [{} for _ in range(options.layers)]
        for _ in range(options.tokens):
            tokens = model(tokens, caches)
        print_memory(step)


if __name__ == "__main__":
    main()
