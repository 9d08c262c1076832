#!/usr/bin/env python3
"""What models of the package transformers take on PyTorch's own allocator; one JSON line for each run.

    transformers_memory.py                 on the GPU of this machine
    transformers_memory.py --simulated     on the simulated device, whose sums of bytes should be the same

A run is three training steps of a model with random weights, or, for `prefill`, a forward pass without gradients.
Beside this program lies what an H100 answered: transformers_memory_h100.jsonl.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulated import ROOT, enter

DEVICE = "capacity:80GiB,races:off"
STEPS = 3
RUN_SECONDS = 300
LLAMA = {
    **{"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16},
    **{"num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 16384},
}


@dataclass(frozen=True)
class Run:
    config: str
    batch: int
    length: int
    sizes: dict[str, int] = field(default_factory=dict)
    dtype: str = "float32"
    autocast: bool = False
    checkpoint: bool = False
    attention: str = ""
    optimizer: str = "AdamW"
    fused: bool = False
    prefill: bool = False
    model: str = "AutoModelForCausalLM"


def llama(batch: int, length: int, *, layers: int = 16, **more: Any) -> Run:
    return Run("LlamaConfig", batch, length, {**LLAMA, "num_hidden_layers": layers}, **more)


def sixteen_bits(config: str, batch: int, length: int, sizes: dict[str, int]) -> Run:
    return Run(config, batch, length, sizes, dtype="bfloat16")


RUNS = {
    "llama_fp32": llama(4, 2048),
    "llama_bf16": llama(4, 2048, dtype="bfloat16"),
    "llama_bf16_eager": llama(2, 2048, dtype="bfloat16", attention="eager"),
    "llama_bf16_fused": llama(4, 2048, dtype="bfloat16", fused=True),
    "llama_bf16_sgd": llama(4, 2048, dtype="bfloat16", optimizer="SGD"),
    "llama_bf16_prefill": llama(4, 4096, dtype="bfloat16", prefill=True),
    "llama_checkpointed_autocast": llama(8, 2048, autocast=True, checkpoint=True),
    "llama_checkpointed_long": llama(2, 16384, layers=4, dtype="bfloat16", checkpoint=True),
    "qwen3_bf16": sixteen_bits(
        "Qwen3Config",
        4,
        2048,
        {
            **{"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16},
            **{"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
        },
    ),
    "gpt_neox_bf16": sixteen_bits(
        "GPTNeoXConfig",
        4,
        2048,
        {
            **{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 16},
            **{"vocab_size": 50304},
        },
    ),
    "gemma2_bf16": sixteen_bits(
        "Gemma2Config",
        2,
        2048,
        {
            **{"hidden_size": 1152, "intermediate_size": 4608, "num_hidden_layers": 8, "num_attention_heads": 8},
            **{"num_key_value_heads": 4, "head_dim": 128, "vocab_size": 64000},
        },
    ),
    "mixtral_bf16": sixteen_bits(
        "MixtralConfig",
        2,
        1024,
        {
            **{"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16},
            **{"num_key_value_heads": 4, "vocab_size": 32000, "num_local_experts": 8},
        },
    ),
    "gpt2_autocast": Run("GPT2Config", 8, 1024, autocast=True),
    "bert_autocast": Run("BertConfig", 16, 512, autocast=True, model="AutoModelForMaskedLM"),
}


def built(torch: Any, transformers: Any, run: Run) -> Any:
    config = getattr(transformers, run.config)(**run.sizes)
    chosen = {"attn_implementation": run.attention} if run.attention else {}
    torch.set_default_dtype(getattr(torch, run.dtype))
    with torch.device("cuda"):
        model = getattr(transformers, run.model).from_config(config, **chosen)
    torch.set_default_dtype(torch.float32)
    return model


def train(torch: Any, run: Run, model: Any, tokens: Any) -> list[dict[str, int]]:
    model.train()
    if run.checkpoint:
        model.gradient_checkpointing_enable()
        model.config.use_cache = False
    options = {"fused": True} if run.fused else {}
    optimizer = getattr(torch.optim, run.optimizer)(model.parameters(), lr=1e-4, **options)
    steps = []
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16, enabled=run.autocast):
            loss = model(input_ids=tokens, labels=tokens).loss
        forward = torch.cuda.max_memory_allocated()
        loss.backward()
        backward = torch.cuda.max_memory_allocated()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        steps.append({"forward": forward, "backward": backward, **sums(torch)})
        del loss
    return steps


def sums(torch: Any) -> dict[str, int]:
    """In bytes: what lives, the most that lived since the step began, the most that was reserved."""
    return {
        "after": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }


def measure(name: str, simulated: bool) -> dict[str, Any]:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    if simulated:  # neither is
        torch.backends.cudnn.enabled = False
        torch.backends.cuda.enable_cudnn_sdp(False)
        importlib.import_module("spillway._values").Values(torch, "small").start()
    run = RUNS[name]
    torch.manual_seed(0)
    model = built(torch, transformers, run)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    found: dict[str, Any] = {
        "run": name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name(0),
        "parameters": sum(each.numel() for each in model.parameters()),
        "model_bytes": torch.cuda.memory_allocated(),
    }
    tokens = torch.randint(0, 1000, (run.batch, run.length), device="cuda")
    if run.prefill:
        model.eval()
        with torch.no_grad():
            model(tokens)
        torch.cuda.synchronize()
        return {**found, "steps": [sums(torch)]}
    return {**found, "steps": train(torch, run, model, tokens)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="append", choices=RUNS, help="only this one; may be repeated")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    options = parser.parse_args()
    names = options.run or list(RUNS)
    if len(names) == 1:
        if options.simulated:
            enter(options.build.resolve(), SPILLWAY_SIM=DEVICE)
        print(json.dumps(measure(names[0], options.simulated)), flush=True)
        return 0
    # Each in a process of its own: what one leaves behind would be in the sums of the next.
    failed = 0
    for name in names:
        words = [sys.executable, __file__, "--run", name, f"--build={options.build}"]
        words += ["--simulated"] if options.simulated else []
        try:
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"transformers_memory.py: {name}: not done in {RUN_SECONDS} s", file=sys.stderr)
            failed += 1
            continue
        print(done.stdout, end="", flush=True)
        failed += done.returncode != 0
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
