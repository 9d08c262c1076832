#!/usr/bin/env python3
"""Peaks of one step of TRL's DPOTrainer on models drawn at random, as `spillway dryrun` sees them.

    spillway dryrun --gpu-memory 80GiB -- python preference_peaks.py --seed 1 --count 20 >> rows.jsonl

Each line is one of transformers_peaks.py with `method` beside it: pairs of samples, of which a quarter is the prompt.
Needs TRL, transformers, PEFT, and Triton for TRL's own kernels.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers_peaks as peaks

Row = dict[str, Any]
KINDS = ("llama", "mistral", "qwen2", "qwen3", "gemma")


def draw(rng: random.Random) -> Row:
    row = peaks.draw(rng, list(KINDS))
    row["precision"] = rng.choice(["bf16", "autocast"])
    row["optimizer"] = rng.choice(["adamw", "sgd"])
    row |= {"attention": "sdpa", "accumulation": 1, "method": "dpo"}
    if rng.random() < 0.4:
        row = peaks.with_adapter(rng, row)
    return row


class Peak(importlib.import_module("transformers").TrainerCallback):  # type: ignore[misc]
    """Of the last step alone."""

    def __init__(self, steps: int) -> None:
        self.steps, self.peak, self.steady = steps, 0, 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.steps - 1:
            torch.cuda.reset_peak_memory_stats()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.peak, self.steady = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()


def tokenizer() -> Any:
    tokenizers, transformers = importlib.import_module("tokenizers"), importlib.import_module("transformers")
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    of_words = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    of_words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=of_words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def pairs(row: Row, count: int) -> Any:
    datasets = importlib.import_module("datasets")
    prompt = row["sequence"] // 4
    # The end of the text is one more token.
    answer = " ".join(["a"] * (row["sequence"] - prompt - 1))
    sample = {"prompt": " ".join(["a"] * prompt), "chosen": " " + answer, "rejected": " " + answer}
    return datasets.Dataset.from_list([sample] * count)


def measured(row: Row, steps: int) -> Row:
    trl, peft = importlib.import_module("trl"), importlib.import_module("peft")
    before = torch.cuda.memory_allocated()
    model = peaks.model_of({**row, "recompute": False})
    watch = Peak(steps)
    with tempfile.TemporaryDirectory() as folder:
        settings = trl.DPOConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=row["batch"],
            gradient_checkpointing=row["recompute"],
            gradient_checkpointing_kwargs={"use_reentrant": False},
            bf16=row["precision"] == "autocast",
            optim={"adamw": "adamw_torch_fused", "sgd": "sgd"}[row["optimizer"]],
            max_length=row["sequence"],
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        adapter = peft.LoraConfig(**row["adapter"]) if "adapter" in row else None
        trainer = trl.DPOTrainer(
            model=model,
            ref_model=None if adapter else peaks.model_of({**row, "recompute": False}),
            args=settings,
            train_dataset=pairs(row, row["batch"] * steps),
            processing_class=tokenizer(),
            peft_config=adapter,
            callbacks=[watch],
        )
        trainer.train()
    name = type(model).__name__
    return {"class": name, "peak": watch.peak - before, "steady": watch.steady - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows else []
    while not options.rows and len(rows) < options.count:
        row = draw(rng)
        if not peaks.too_large({**row, "batch": 2 * row["batch"]}):
            rows.append(row | {"seed": options.seed, "number": len(rows)})
    versions = {name: importlib.import_module(name).__version__ for name in ("transformers", "trl")}
    for row in rows:
        peaks.forget()
        try:
            found = measured(row, options.steps)
        except (RuntimeError, ValueError) as error:
            print(f"{json.dumps(row)}: {error}", file=sys.stderr)
            continue
        print(json.dumps({**row, **versions, "torch": torch.__version__, **found}), flush=True)


if __name__ == "__main__":
    main()
