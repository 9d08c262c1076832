"""The memory of each step in a logger of Lightning's Trainer.

    spillway run -- python lightning_memory.py
    spillway dryrun --gpu-memory 8GiB -- python lightning_memory.py         # without a GPU

Needs lightning. Prints the file that CSVLogger wrote; TensorBoardLogger and WandbLogger get the same.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from spillway.integrations.lightning import SpillwayCallback
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 256


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, 10)
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.layers(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    data = DataLoader(TensorDataset(torch.randn(64, WIDTH), torch.randint(10, (64,))), batch_size=8)
    with tempfile.TemporaryDirectory() as folder:
        logger = CSVLogger(folder)
        trainer = Trainer(
            accelerator="cuda",
            devices=1,
            max_epochs=1,
            log_every_n_steps=2,
            logger=logger,
            callbacks=[SpillwayCallback()],
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        )
        trainer.fit(Classifier(), data)
        print((Path(logger.log_dir) / "metrics.csv").read_text())


if __name__ == "__main__":
    main()
