#!/usr/bin/env python3
"""Training steps of transformers' models, of which `spillway dryrun --out` records what an allocator is asked for.

    spillway dryrun --gpu-memory 640GiB --values none --no-bytes --out llama.pickle \
        -- python bench/estimator/reserved_programs.py llama-fixed

`bench/estimator/reserved.py` replays the records. Needs transformers.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig, Qwen2Config

LLAMA_1B = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
LLAMA_3B = {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24}
QWEN_7B = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}


@dataclass(frozen=True)
class Program:
    config: PretrainedConfig
    batch: int
    length: int
    varied: bool = False  # each batch is as long as its longest text
    checkpointed: bool = False
    precision: str = "bf16"  # bf16, autocast (fp32 weights)
    steps: int = 3


def llama(sizes: dict[str, int]) -> LlamaConfig:
    return LlamaConfig(**sizes, num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True)


def programs() -> dict[str, Program]:
    qwen = Qwen2Config(**QWEN_7B, num_key_value_heads=4, vocab_size=152064)
    gpt2 = GPT2Config(n_embd=1600, n_layer=48, n_head=25)
    return {
        "llama-fixed": Program(llama(LLAMA_1B), 4, 2048),
        "llama-varied": Program(llama(LLAMA_1B), 8, 2048, varied=True, steps=8),
        "llama-3b-fixed": Program(llama(LLAMA_3B), 4, 768),
        "llama-3b-varied": Program(llama(LLAMA_3B), 4, 768, varied=True, steps=8),
        "llama-3b-checkpointed": Program(llama(LLAMA_3B), 2, 8192, checkpointed=True),
        "llama-3b-checkpointed-varied": Program(llama(LLAMA_3B), 4, 4096, varied=True, checkpointed=True, steps=8),
        "qwen-7b-checkpointed": Program(qwen, 4, 4096, checkpointed=True),
        "qwen-7b-autocast-checkpointed": Program(qwen, 1, 4096, checkpointed=True, precision="autocast"),
        "gpt2-xl-autocast": Program(gpt2, 8, 1024, precision="autocast"),
    }


def lengths(program: Program) -> list[int]:
    draw = random.Random(0)
    if not program.varied:
        return [program.length] * program.steps
    # Texts of any length from a sixteenth of the longest on; a batch has that of its longest.
    shortest = program.length // 16
    return [max(draw.randint(shortest, program.length) for _ in range(program.batch)) for _ in range(program.steps)]


def train(program: Program) -> None:
    torch.manual_seed(0)
    weights = torch.float32 if program.precision == "autocast" else torch.bfloat16
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(program.config, dtype=weights)
    model = model.to_empty(device="cuda").train()
    if program.checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    for length in lengths(program):
        tokens = torch.zeros(program.batch, length, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=program.precision == "autocast"):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=programs())
    train(programs()[parser.parse_args().program])


if __name__ == "__main__":
    main()
