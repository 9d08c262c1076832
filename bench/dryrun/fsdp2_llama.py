"""Steps of Llama 3 under FSDP2, for `spillway dryrun` with as many ranks as one likes.

    dryrun="spillway dryrun --devices 8 --gpu-memory"
    $dryrun 80GiB --world-size 1024 --ranks 0,1023 -- python bench/dryrun/fsdp2_llama.py
    $dryrun 640GiB --world-size 8 --ranks 0,7 -- python bench/dryrun/fsdp2_llama.py
    $dryrun 640GiB -- torchrun --nproc-per-node 8 bench/dryrun/fsdp2_llama.py

The model is made without memory, sharded, and given memory then. Needs transformers.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
}


def model_of(size: str) -> LlamaForCausalLM:
    config = LlamaConfig(**SHAPES[size], num_key_value_heads=8, vocab_size=128256, use_cache=False)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="70b")
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = model_of(options.model).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.zeros(1, options.sequence, dtype=torch.long, device="cuda")
    for _ in range(options.steps):
        logits = model(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)).float(), tokens.view(-1))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(loss.detach())
    torch.cuda.synchronize()
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()}: {options.steps} steps, {type(norm).__name__} norm",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
