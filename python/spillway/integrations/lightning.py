"""The device memory of each step in the loggers of Lightning's Trainer.

from spillway.integrations.lightning import SpillwayCallback
Trainer(..., callbacks=[SpillwayCallback()])
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import torch

from ._steps import Step, StepMeter

if TYPE_CHECKING:
    import lightning.pytorch as lightning
else:  # one package under two names, whose classes differ: the one that the program has imported
    used = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    lightning = importlib.import_module(used)


class SpillwayCallback(lightning.Callback):
    """Every logger of the trainer gets `memory/...` with each `log_every_n_steps`-th step, and so has
    `trainer.callback_metrics`, for callbacks that watch a metric.

    over_ranks: the largest of all ranks, else rank 0's own. keep_peaks: torch.cuda's peak counters are not reset, and a
    step's peak is that of the run so far. annotate: spillway.annotate() is called after the first step.
    """

    def __init__(self, *, over_ranks: bool = True, keep_peaks: bool = False, annotate: bool = True) -> None:
        self.meter = StepMeter(keeps_peaks=keep_peaks, over_ranks=over_ranks, annotates=annotate)

    @property
    def last(self) -> Step | None:
        """The step that ended last, in bytes, of this rank."""
        return self.meter.last

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.meter.begin_run()

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.meter.begin(batches(trainer) + 1)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.meter.end(batches(trainer) + 1)
        if trainer.global_step > 0:  # gradients are there until the next batch, and the optimizer's states
            self.meter.annotate(pl_module, trainer.optimizers)
        if not trainer._logger_connector.should_update_logs and not trainer.fast_dev_run:
            return
        metrics = self.meter.metrics()
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        for logger in trainer.loggers if metrics else []:
            logger.log_metrics(metrics, step=batches(trainer))


def batches(trainer: lightning.Trainer) -> int:
    """The step of what Lightning logs itself."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
