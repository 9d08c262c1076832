#!/usr/bin/env python3
"""Peaks of one training step of models of the package transformers, drawn at random, as `spillway dryrun` sees them.

    spillway dryrun --gpu-memory 80GiB -- python transformers_peaks.py --seed 1 --count 100 >> rows.jsonl

Each line holds the model's configuration, how it was trained, and the bytes: `peak` of the third step, `steady` after
it. The same seed and kinds draw the same configurations. `--rows FILE` runs those of its lines again. The lines of
tests/estimator/data/transformers-*.jsonl were made so; `seed` and `number` say how each was.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hybrid_types
import low_memory_optimizers
import more_types
import torch
import vision_language

Row = dict[str, Any]

# Weights, activations and logits together take less than this.
MOST_BYTES = 40 << 30
# More than this is left of a row that failed, and would be freed while the next one is measured.
MOST_LEFT = 1 << 20


def widths(rng: random.Random) -> Row:
    head = rng.choice([32, 64, 64, 80, 96, 128])
    heads = rng.choice([4, 8, 12, 16, 24, 32])
    groups = rng.choice([1, 1, 2, 4])
    ffn = int(head * heads * rng.choice([1.5, 2, 2.6875, 3.5, 4])) // 16 * 16
    return {"head": head, "heads": heads, "kv": max(1, heads // groups), "hidden": head * heads, "ffn": ffn}


def decoder(rng: random.Random, kind: str) -> Row:
    w = widths(rng)
    out = {
        **{"model_type": kind, "hidden_size": w["hidden"], "intermediate_size": w["ffn"]},
        **{"num_attention_heads": w["heads"], "num_key_value_heads": w["kv"]},
        **{"num_hidden_layers": rng.randint(2, 24), "vocab_size": rng.choice([32000, 50304, 65536, 128256, 151936])},
        **{"max_position_embeddings": 32768, "tie_word_embeddings": rng.random() < 0.4},
    }
    if kind in ("qwen3", "gemma", "gemma2", "gemma3_text", "qwen3_moe"):
        out["head_dim"] = rng.choice([64, 128, 256])
    if kind in ("mixtral", "qwen3_moe"):
        out["num_local_experts" if kind == "mixtral" else "num_experts"] = rng.choice([4, 8])
        out["num_experts_per_tok"] = 2
        out["num_hidden_layers"] = rng.randint(2, 8)
        out["intermediate_size" if kind == "mixtral" else "moe_intermediate_size"] = w["ffn"] // 2
    if kind == "phi3":
        out |= {"pad_token_id": 0, "partial_rotary_factor": rng.choice([1.0, 0.5])}
    if kind == "gpt_neox":
        out |= {"rotary_pct": rng.choice([0.25, 1.0]), "use_parallel_residual": rng.random() < 0.7}
        del out["num_key_value_heads"]
    return out


def gpt2(rng: random.Random) -> Row:
    w = widths(rng)
    drop = rng.choice([0.0, 0.1])
    return {
        **{"model_type": "gpt2", "n_embd": w["hidden"], "n_head": w["heads"], "n_layer": rng.randint(2, 24)},
        **{"vocab_size": 50257, "n_positions": rng.choice([1024, 2048])},
        **{"resid_pdrop": drop, "embd_pdrop": drop, "attn_pdrop": drop},
    }


def bert(rng: random.Random, kind: str) -> Row:
    w = widths(rng)
    drop = rng.choice([0.0, 0.1])
    return {
        **{"model_type": kind, "hidden_size": w["hidden"], "intermediate_size": w["ffn"], "vocab_size": 30522},
        **{"num_attention_heads": w["heads"], "num_hidden_layers": rng.randint(2, 24)},
        **{"max_position_embeddings": 514, "hidden_dropout_prob": drop, "attention_probs_dropout_prob": drop},
    }


def t5(rng: random.Random) -> Row:
    w = widths(rng)
    return {
        **{"model_type": "t5", "d_model": w["hidden"], "d_ff": w["ffn"], "d_kv": 64, "num_heads": w["heads"]},
        **{"num_layers": rng.randint(2, 12), "vocab_size": 32128, "dropout_rate": rng.choice([0.0, 0.1])},
        **{"feed_forward_proj": rng.choice(["relu", "gated-gelu"]), "decoder_start_token_id": 0},
    }


def vit(rng: random.Random) -> Row:
    w = widths(rng)
    return {
        **{"model_type": "vit", "hidden_size": w["hidden"], "intermediate_size": w["ffn"], "image_size": 224},
        **{"num_attention_heads": w["heads"], "num_hidden_layers": rng.randint(2, 24)},
        **{"patch_size": rng.choice([14, 16, 32])},
    }


LLAMAS = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma", "gemma2", "gemma3_text", "gpt_neox")
EXPERTS = ("mixtral", "qwen3_moe")
KINDS: dict[str, Callable[[random.Random], Row]] = {
    **{kind: partial(decoder, kind=kind) for kind in LLAMAS + EXPERTS},
    **{kind: partial(bert, kind=kind) for kind in ("bert", "roberta")},
    **{"gpt2": gpt2, "t5": t5, "vit": vit},
}
OTHERS = more_types.KINDS | hybrid_types.KINDS | vision_language.KINDS  # where --kinds names them
CLASSES = more_types.CLASSES | {
    **{"bert": "AutoModelForMaskedLM", "roberta": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM"},
    **{"vit": "AutoModelForImageClassification"},
}
IMAGES = "AutoModelForImageTextToText"
OF_IMAGES = ("vit", *more_types.IMAGES)
LONGEST = more_types.LONGEST | hybrid_types.LONGEST | {"bert": 512, "roberta": 512, "t5": 1024, "gpt2": 1024}


def draw(rng: random.Random, kinds: list[str]) -> Row:
    kind = rng.choice(kinds)
    config = (KINDS | OTHERS)[kind](rng)
    longest = LONGEST.get(kind, 8192)
    sequence = rng.choice([length for length in (128, 256, 512, 1024, 2048, 4096, 8192) if length <= longest])
    row = {
        **{"config": config, "sequence": sequence, "batch": rng.choice([1, 2, 4, 8, 16])},
        **{"precision": rng.choice(["bf16", "bf16", "fp32", "autocast"]), "recompute": rng.random() < 0.5},
        **{"optimizer": rng.choice(["adamw", "adamw_foreach", "sgd", "sgd_momentum"])},
        **{"attention": "eager" if rng.random() < 0.1 and sequence <= 1024 else "sdpa"},
        **{"accumulation": rng.choice([1, 1, 1, 2])},
    }
    return vision_language.with_images(rng, row) if kind in vision_language.KINDS else row


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def with_adapter(rng: random.Random, row: Row) -> Row:
    """The same with an adapter of PEFT's beside frozen weights."""
    adapter: Row = {"r": rng.choice([4, 8, 16, 64]), "use_dora": rng.random() < 0.3, "task_type": "CAUSAL_LM"}
    adapter["lora_dropout"] = rng.choice([0.0, 0.0, 0.1])
    adapter["target_modules"] = rng.choice([["q_proj", "v_proj"], ALL])
    return row | {"adapter": adapter}


def with_factors(rng: random.Random, row: Row) -> Row:
    """The same with trained factors (IA3)."""
    inputs, targets = rng.choice([["down_proj"], []]), rng.choice([["k_proj", "v_proj", "down_proj"], ALL])
    adapter = {"peft_type": "IA3", "target_modules": targets, "feedforward_modules": inputs, "task_type": "CAUSAL_LM"}
    return row | {"adapter": adapter}


def with_prompt(rng: random.Random, row: Row) -> Row:
    """The same with trained tokens before the text."""
    tokens = rng.choice([8, 20, 64, 100])
    return row | {
        "adapter": {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": tokens, "task_type": "CAUSAL_LM"},
    }


ADAPTERS = {"lora": with_adapter, "ia3": with_factors, "prompt": with_prompt}


def optimizer_of(row: Row, model: torch.nn.Module) -> torch.optim.Optimizer:
    name = row["optimizer"]
    if name in low_memory_optimizers.KINDS:
        return low_memory_optimizers.optimizer_of(row, model)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if name == "adamw":
        return torch.optim.AdamW(weights, fused=True)
    if name == "adamw_foreach":
        return torch.optim.AdamW(weights, foreach=True)
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9 if name == "sgd_momentum" else 0)


def inputs_of(row: Row) -> Row:
    kind, batch = row["config"]["model_type"], row["batch"]
    if "images" in row:
        return vision_language.inputs_of(row)
    dtype = torch.bfloat16 if row["precision"] == "bf16" else torch.float32
    if kind in OF_IMAGES:
        size = row["config"]["image_size"]
        pixels = torch.zeros(batch, 3, size, size, device="cuda", dtype=dtype)
        return {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.long, device="cuda")}
    tokens = torch.ones(batch, row["sequence"], dtype=torch.long).cuda()
    if kind == "whisper":
        return {"input_features": torch.zeros(batch, 80, 3000, device="cuda", dtype=dtype), "labels": tokens}
    return {"input_ids": tokens, "labels": tokens}


def step(row: Row, model: Any, optimizer: torch.optim.Optimizer, inputs: Row) -> None:
    for _ in range(row["accumulation"]):
        with torch.autocast("cuda", torch.bfloat16, enabled=row["precision"] == "autocast"):
            loss = model(**inputs).loss
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def class_of(row: Row) -> Any:
    transformers = importlib.import_module("transformers")
    usual = CLASSES.get(row["config"]["model_type"], "AutoModelForCausalLM")
    return getattr(transformers, IMAGES if "images" in row else usual)


def model_of(row: Row) -> Any:
    transformers = importlib.import_module("transformers")
    sizes = dict(row["config"])
    config = transformers.AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    config.architectures = config.architectures or []  # where a type has several classes this is looked at
    dtype = torch.bfloat16 if row["precision"] == "bf16" else torch.float32
    kind = class_of(row)
    # The default is SDPA where a class has it.
    attention = {} if row["attention"] == "sdpa" else {"attn_implementation": row["attention"]}
    with torch.device("cuda"):
        model = kind.from_config(config, dtype=dtype, **attention)
    model.train()
    if row.get("freeze_vision"):
        vision_language.freeze_tower(model)
    if row["recompute"]:
        model.gradient_checkpointing_enable()
    if row["optimizer"] == "badam":
        model.enable_input_require_grads()  # else what is recomputed has nothing that asks for a gradient
    return model


def measured(row: Row, steps: int, snapshot: str = "") -> Row:
    before = torch.cuda.memory_allocated()
    model = model_of(row)
    name = type(model).__name__
    if "adapter" in row:
        model = adapted(row, model)
    model.to("cuda")
    optimizer = optimizer_of(row, model)
    inputs = inputs_of(row)
    for i in range(steps):
        if i == steps - 1:
            torch.cuda.reset_peak_memory_stats()
            if snapshot:
                torch.cuda.memory._record_memory_history(max_entries=1000000, context="all", stacks="python")
        low_memory_optimizers.take_turn(row, model, i)
        step(row, model, optimizer, inputs)
    peak, steady = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    if snapshot:
        torch.cuda.memory._dump_snapshot(snapshot)  # type: ignore[no-untyped-call]
    return {"class": name, "peak": peak - before, "steady": steady - before}


def adapted(row: Row, model: Any) -> Any:
    peft = importlib.import_module("peft")
    settings = dict(row["adapter"])
    kind = peft.PeftType(settings.pop("peft_type", "LORA"))
    return peft.get_peft_model(model, peft.PEFT_TYPE_TO_CONFIG_MAPPING[kind](**settings))


def too_large(row: Row) -> bool:
    meta = model_meta(row)
    weights = sum(weight.numel() for weight in meta.parameters())
    size = {"bf16": 2, "fp32": 4, "autocast": 4}[row["precision"]]
    config = meta.config.get_text_config()
    kind = row["config"]["model_type"]
    tokens = row["batch"] * (257 if kind in OF_IMAGES else 1500 if kind == "whisper" else row["sequence"])
    layers = getattr(config, "num_hidden_layers", 12) * tokens * config.hidden_size * 40 * (1 if size == 2 else 2)
    scores = (
        tokens
        * row["sequence"]
        * getattr(config, "num_attention_heads", 0)
        * 10
        * getattr(config, "num_hidden_layers", 12)
    )
    logits = 14 * tokens * getattr(config, "vocab_size", 0)
    return bool(4 * size * weights + logits + layers + (scores if row["attention"] == "eager" else 0) > MOST_BYTES)


def model_meta(row: Row) -> Any:
    transformers = importlib.import_module("transformers")
    sizes = dict(row["config"])
    config = transformers.AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    config.architectures = config.architectures or []  # where a type has several classes this is looked at
    with torch.device("meta"):
        return class_of(row).from_config(config)


def forget() -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--adapters", choices=ADAPTERS, help="each with an adapter, of types that have q_proj")
    parser.add_argument("--optimizers", default="", help=f"of {', '.join(low_memory_optimizers.KINDS)}, drawn for each")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--snapshot", default="", help="PyTorch's memory history of the last step, of one row")
    options = parser.parse_args()
    optimizers = options.optimizers.split(",") if options.optimizers else []
    if unknown := [name for name in optimizers if name not in low_memory_optimizers.KINDS]:
        parser.error(f"--optimizers: '{unknown[0]}' is not known; allowed: {', '.join(low_memory_optimizers.KINDS)}")
    if optimizers and options.adapters:
        parser.error("--optimizers: not allowed beside --adapters")
    version = importlib.import_module("transformers").__version__
    if options.rows:
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    else:
        rng = random.Random(options.seed)
        usual = LLAMAS if optimizers else KINDS
        kinds = options.kinds.split(",") if options.kinds else list(usual)
        rows = []
        while len(rows) < options.count:
            row = draw(rng, kinds)
            if options.adapters:
                row = ADAPTERS[options.adapters](rng, row)
            if optimizers:
                kind = rng.choice(optimizers)
                row |= low_memory_optimizers.settings(rng, kind) | {"precision": "bf16", "accumulation": 1}
            if not too_large(row):
                rows.append(row | {"seed": options.seed, "number": len(rows)})
    for row in rows:
        forget()
        if (held := torch.cuda.memory_allocated()) > MOST_LEFT:
            print(f"{json.dumps(row)}: a row before it, which failed, still holds {held} bytes", file=sys.stderr)
            continue
        try:
            found = measured(row, options.steps, options.snapshot)
        except (RuntimeError, ValueError) as error:
            print(f"{json.dumps(row)}: {error}", file=sys.stderr)
            continue
        print(json.dumps({**row, "transformers": version, "torch": torch.__version__, **found}), flush=True)


if __name__ == "__main__":
    main()
