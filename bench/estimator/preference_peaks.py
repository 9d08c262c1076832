#!/usr/bin/env python3
"""Peaks of one step of TRL's DPOTrainer and PPOTrainer on models drawn at random, as `spillway dryrun` sees them.

    spillway dryrun --gpu-memory 80GiB -- python preference_peaks.py --seed 1 --count 20 >> rows.jsonl
    spillway dryrun --gpu-memory 80GiB -- python preference_peaks.py --method ppo --seed 1 --count 20 >> rows.jsonl

Each line is one of transformers_peaks.py with `method` beside it: pairs of samples, or for PPO prompts that are
answered, of which a quarter is the prompt. PPO's `generation` is the peak of answering and scoring, `training` that of
the passes after it. Needs TRL (1.12 is the last one with PPO), transformers, PEFT, and Triton for TRL's own kernels.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers_peaks as peaks

Row = dict[str, Any]
KINDS = ("llama", "mistral", "qwen2", "qwen3", "gemma")


def draw(rng: random.Random, method: str) -> Row:
    row = peaks.draw(rng, list(KINDS))
    row["precision"] = rng.choice(["bf16", "autocast"])
    row["optimizer"] = rng.choice(["adamw", "sgd"])
    row |= {"attention": "sdpa", "accumulation": 1, "method": method}
    if method == "ppo":
        # Every token is a pass of its own.
        row |= {"sequence": min(row["sequence"], rng.choice([64, 128, 256])), "batch": rng.choice([2, 4, 8, 16])}
        row["precision"] = rng.choice(["bf16", "autocast", "fp32"])
        row |= {"accumulation": rng.choice([1, 1, 2]), "rollout_batch": rng.choice([2, 8, 64])}
        return row | {"recompute": False}  # the trainer turns it on nowhere
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


class UpdatePeak(importlib.import_module("transformers").TrainerCallback):  # type: ignore[misc]
    """Of the last update of PPO: of answers and their scores, and of training on them."""

    def __init__(self) -> None:
        self.generation, self.training, self.steady, self.generates = 0, 0, 0, True

    def on_training(self) -> None:
        if self.generates:
            self.generation, self.generates = torch.cuda.max_memory_allocated(), False
            torch.cuda.reset_peak_memory_stats()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.training, self.steady = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        self.generates = True
        torch.cuda.reset_peak_memory_stats()


def scorer_of(row: Row) -> Any:
    """The same model with one score for each token in the place of logits."""
    transformers = importlib.import_module("transformers")
    sizes = dict(row["config"])
    config = transformers.AutoConfig.for_model(sizes.pop("model_type"), num_labels=1, **sizes)
    dtype = torch.bfloat16 if row["precision"] == "bf16" else torch.float32
    with torch.device("cuda"):
        return transformers.AutoModelForSequenceClassification.from_config(config, dtype=dtype)


def chosen(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
    """In the place of torch.multinomial: logits are not computed, and a token that is drawn from them is not known."""
    return torch.full((len(probabilities), num_samples), 2, device=probabilities.device)


def measured_ppo(row: Row, steps: int) -> Row:
    torch.multinomial = chosen  # type: ignore[assignment]
    # The trainer makes an Accelerator of its own, which transformers 5 tells nothing of `bf16`.
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if row["precision"] == "autocast" else "no"
    ppo, datasets = importlib.import_module("trl.experimental.ppo"), importlib.import_module("datasets")
    before = torch.cuda.memory_allocated()
    model = peaks.model_of({**row, "recompute": False})
    watch = UpdatePeak()
    prompt = row["sequence"] // 4
    with tempfile.TemporaryDirectory() as folder:
        settings = ppo.PPOConfig(
            output_dir=folder,
            total_episodes=steps * row["batch"] * row["accumulation"],
            per_device_train_batch_size=row["batch"],
            gradient_accumulation_steps=row["accumulation"],
            local_rollout_forward_batch_size=row["rollout_batch"],
            response_length=row["sequence"] - prompt,
            num_ppo_epochs=2,
            num_sample_generations=0,
            bf16=row["precision"] == "autocast",
            optim={"adamw": "adamw_torch_fused", "sgd": "sgd"}[row["optimizer"]],
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        # At the end of the data every microbatch would be an update (Accelerate's sync_with_dataloader).
        count = (steps + 1) * row["batch"] * row["accumulation"]
        samples = datasets.Dataset.from_list([{"input_ids": [2] * prompt}] * count)
        trainer = ppo.PPOTrainer(
            args=settings,
            processing_class=tokenizer(),
            model=model,
            ref_model=peaks.model_of({**row, "recompute": False}),
            reward_model=scorer_of(row),
            value_model=scorer_of(row),
            train_dataset=samples,
            eval_dataset=samples,
            callbacks=[watch],
        )
        accumulate = trainer.accelerator.accumulate

        def noticed(*models: Any) -> Any:
            watch.on_training()
            return accumulate(*models)

        trainer.accelerator.accumulate = noticed
        trainer.train()
    found = {"generation": watch.generation - before, "training": watch.training - before}
    name = type(model).__name__
    return {"class": name, "peak": max(found.values()), "steady": watch.steady - before, **found}


def measured(row: Row, steps: int) -> Row:
    if row["method"] == "ppo":
        return measured_ppo(row, steps)
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
    parser.add_argument("--method", choices=("dpo", "ppo"), default="dpo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows else []
    while not options.rows and len(rows) < options.count:
        row = draw(rng, options.method)
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
