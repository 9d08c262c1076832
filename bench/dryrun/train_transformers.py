#!/usr/bin/env python3
"""Trains a small model of the package transformers with random weights and prints its losses as one JSON line."""

from __future__ import annotations

import argparse
import importlib
import json

import torch

SIZES = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 256, "output_router_logits": True},
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
MODELS = {
    "gpt2": ("GPT2Config", GPT2),
    "mixtral": ("MixtralConfig", {**SIZES, "num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**SIZES, "moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 16},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    transformers = importlib.import_module("transformers")
    config, sizes = MODELS[options.model]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**sizes))
    model = model.to(options.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 256, (4, 32)).to(options.device)
    losses = []
    for _ in range(options.steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(json.dumps({"losses": losses}))


if __name__ == "__main__":
    main()
