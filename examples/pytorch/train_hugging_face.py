"""A small Llama of random weights under the Trainer of Hugging Face; nothing is downloaded.

spillway run -- python train_hugging_face.py
spillway dryrun --gpu-memory 8GiB -- python train_hugging_face.py
"""

from __future__ import annotations

import tempfile

import torch
from language_model import VOCABULARY, parser, print_memory
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)


class RandomText(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, texts: int, length: int) -> None:
        self.tokens = torch.randint(VOCABULARY, (texts, length))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class PrintMemory(TrainerCallback):
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: object
    ) -> None:
        print_memory(state.global_step)


def main() -> None:
    options = parser(__doc__).parse_args()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=options.width,
            intermediate_size=3 * options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=options.width // 64,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=options.batch,
                max_steps=options.steps,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                logging_nan_inf_filter=False,  # nothing depends on values, which the simulated device does not compute
            ),
            train_dataset=RandomText(options.batch * options.steps, options.length),
            callbacks=[PrintMemory()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
