"""The memory of each step in the logs of Hugging Face's Trainer; a small Llama of random weights.

    spillway run -- python hugging_face_memory.py [tensorboard|wandb|...]
    spillway run -- torchrun --nproc-per-node 2 hugging_face_memory.py
    spillway dryrun --gpu-memory 8GiB -- python hugging_face_memory.py      # without a GPU

Needs transformers and accelerate, and tensorboardX for `report_to="tensorboard"`.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from spillway.integrations.transformers import SpillwayCallback
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

VOCABULARY, LENGTH, BATCH = 1000, 64, 4


class RandomText(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, texts: int) -> None:
        self.tokens = torch.randint(VOCABULARY, (texts, LENGTH))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main(report_to: str, folder: str) -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2
        )
    )
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=BATCH,
        max_steps=6,
        logging_steps=2,
        save_strategy="no",
        report_to=report_to,
        disable_tqdm=True,
        logging_nan_inf_filter=False,  # nothing depends on values, which the simulated device does not compute
    )
    trainer = Trainer(model, arguments, train_dataset=RandomText(100), callbacks=[SpillwayCallback()])
    trainer.train()
    if trainer.is_world_process_zero():
        for logs in trainer.state.log_history:
            print({name: value for name, value in logs.items() if name == "step" or name.startswith("memory/")})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main((sys.argv[1:] or ["none"])[0], folder)
