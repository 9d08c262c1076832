#!/usr/bin/env python3
"""Figures that others measured on GPUs and published, and the dry run of what they ran.

    published.py --python VENV/bin/python [--only peft]

PEFT's comparison of methods (method_comparison/MetaMathQA of its repository, of July 2026): Llama-3.2-3B in bfloat16,
batches of 4 texts of at most 768 tokens, sorted by length within 20 batches, AdamW; the most that PyTorch's allocator
had reserved after a step. torchtune's README: Llama-3.2-3B in bfloat16, 2 x 4096 packed tokens, AdamW; the most that
was active. Weights are random, lengths are spread evenly. The Python needs a PyTorch for CUDA with transformers and
peft, or torchtune 0.4.0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COMMAND = Path(__file__).resolve().parents[2] / "build" / "release" / "bin" / "spillway"
GIB = 1 << 30
# Llama-3.2-3B.
VOCABULARY = 128256
SHAPE = {
    **{"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24},
    **{"num_key_value_heads": 8, "head_dim": 128, "vocab_size": VOCABULARY, "tie_word_embeddings": True},
    **{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
}
FEED_FORWARD = ["gate_proj", "up_proj", "down_proj"]
# What was published, in GiB, and the arguments of peft.LoraConfig; none: all weights are trained.
PEFT: dict[str, tuple[float, dict[str, Any] | None]] = {
    "full": (36.20, None),
    "lora-rank32": (20.76, {"r": 32, "lora_alpha": 64}),
    "lora-rank64": (21.00, {"r": 64, "lora_alpha": 64}),
    "rslora-rank64": (21.01, {"r": 64, "lora_alpha": 64, "use_rslora": True}),
    "lora-rank10-mlp": (23.00, {"r": 10, "lora_alpha": 10, "target_modules": FEED_FORWARD}),
    "dora-rank32": (22.85, {"r": 32, "lora_alpha": 64, "use_dora": True}),
}
# What was published, in GiB; each has what those above it have.
TORCHTUNE = {
    "packed": 60.0,
    "compiled": 51.0,
    "chunked-loss": 42.9,
    "checkpointed": 24.9,
    "optimizer-in-backward": 23.1,
    "activations-on-host": 21.8,
}
LONGEST, SHORTEST, BATCHES_IN_BUCKET, BUCKETS, BATCH = 640, 96, 20, 2, 4
STEPS_BETWEEN_EMPTYING = 10


# ---- What runs in a dry run


def lengths() -> Iterator[list[int]]:
    """Of the texts of each batch, the longest of a bucket first, when the allocator's cache has just been emptied."""
    count = BATCHES_IN_BUCKET * BATCH
    every = [LONGEST - (LONGEST - SHORTEST) * at // (count - 1) for at in range(count)]
    return (every[at : at + BATCH] for _ in range(BUCKETS) for at in range(0, count, BATCH))


def run_peft(name: str) -> float:
    import peft  # type: ignore[import-not-found]
    import torch
    import transformers

    config = transformers.LlamaConfig(**SHAPE, dtype=torch.bfloat16)
    with torch.device("cuda"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    options = PEFT[name][1]
    if options is not None:
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    model.train()
    most = 0
    for step, each in enumerate(lengths(), 1):
        mask = torch.zeros(BATCH, max(each), dtype=torch.int64)
        for row, length in enumerate(each):
            mask[row, :length] = 1
        tokens = torch.randint(VOCABULARY, mask.shape).cuda()
        labels = tokens.clone()
        for row, length in enumerate(each):
            labels[row, length + 1 :] = -100
        optimizer.zero_grad()
        attention_mask = mask.cuda()
        count = attention_mask.sum().item()
        outputs = model(input_ids=tokens, attention_mask=attention_mask, labels=labels, num_items_in_batch=count)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        most = max(most, torch.cuda.memory_reserved())
        if step % STEPS_BETWEEN_EMPTYING == 0:
            torch.cuda.empty_cache()
    return most / GIB


def run_torchtune(name: str) -> float:
    import torch
    from torchtune import modules, training  # type: ignore[import-not-found]
    from torchtune.models.llama3_2 import llama3_2_3b  # type: ignore[import-not-found]
    from torchtune.training import memory  # type: ignore[import-not-found]

    on = dict.fromkeys(list(TORCHTUNE)[: list(TORCHTUNE).index(name) + 1], True)
    with training.set_default_dtype(torch.bfloat16), torch.device("cuda"):
        model = llama3_2_3b()
    if "compiled" in on:
        training.compile_model(model, verbose=False)
    loss_of: Any = torch.nn.CrossEntropyLoss(ignore_index=-100)
    if "chunked-loss" in on:
        loss_of = modules.loss.CEWithChunkedOutputLoss()
        model.set_num_output_chunks(loss_of.num_output_chunks)
    if "compiled" in on:
        training.compile_loss(loss_of, verbose=False)
    if "checkpointed" in on:
        training.set_activation_checkpointing(model, auto_wrap_policy={modules.TransformerSelfAttentionLayer})
    steps_by_itself = "optimizer-in-backward" in on
    if steps_by_itself:
        each = {weight: torch.optim.AdamW([weight], lr=2e-5, fused=True) for weight in model.parameters()}
        memory.register_optim_in_bwd_hooks(model=model, optim_dict=each)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    moves: Any = training.get_act_offloading_ctx_manager(model, "activations-on-host" in on)
    model.train()
    for _ in range(3):
        tokens = torch.randint(VOCABULARY, (2, 4096)).cuda()
        labels = torch.hstack((tokens[..., 1:], torch.full((2, 1), -100, device="cuda")))
        with moves:
            logits = model(tokens)
        if not isinstance(logits, list):
            labels, logits = labels.reshape(-1), logits.reshape(-1, logits.size(-1))
        loss = loss_of(logits, labels)
        del logits
        loss.backward()
        if not steps_by_itself:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss.item()
    return float(torch.cuda.memory_stats()["active_bytes.all.peak"]) / GIB


GROUPS: dict[str, tuple[list[str], Callable[[str], float], Callable[[str], float]]] = {
    "peft": (list(PEFT), run_peft, lambda name: PEFT[name][0]),
    "torchtune": (list(TORCHTUNE), run_torchtune, lambda name: TORCHTUNE[name]),
}


# ---- What starts the dry runs


def dryrun(command: Path, python: str, group: str, name: str) -> float:
    words = [str(command), "dryrun", "--gpu-memory", "80GiB", "--allocator", "native", "--no-bytes"]
    program = [python, str(Path(__file__).resolve()), "--program", group, name]
    done = subprocess.run([*words, "--", *program], capture_output=True, text=True, check=False)
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"gib"')]
    if done.returncode != 0 or not answers:
        sys.exit(f"{group} {name}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return float(json.loads(answers[-1])["gib"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--command", type=Path, default=COMMAND, help="spillway, of the build unless given")
    parser.add_argument("--only", default="", help="a part of the group's and the case's name, as 'peft lora'")
    parser.add_argument("--program", nargs=2, metavar=("GROUP", "CASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        group, name = options.program
        print(json.dumps({"gib": GROUPS[group][1](name)}), flush=True)
        return
    cases = [(group, name) for group, (names, _, _) in GROUPS.items() for name in names]
    chosen = [(group, name) for group, name in cases if options.only in f"{group} {name}"]
    if not chosen:
        parser.error(f"--only '{options.only}': allowed: a part of {', '.join(map(' '.join, cases))}")
    for group, name in chosen:
        published = GROUPS[group][2](name)
        found = dryrun(options.command, options.python, group, name)
        print(f"| {group} | {name} | {published:.2f} | {found:.2f} | {found / published - 1:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
