"""The device memory of each step in the logs of Hugging Face's Trainer.

from spillway.integrations.transformers import SpillwayCallback
Trainer(..., callbacks=[SpillwayCallback()])
"""

from __future__ import annotations

import sys
from typing import Any

from transformers import DefaultFlowCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ._steps import Step, StepMeter


class SpillwayCallback(TrainerCallback):
    """What is logged gets `memory/...` beside its loss, for TensorBoard, W&B and whatever else `report_to` names, and
    for `trainer.state.log_history`.

    over_ranks: the largest of all ranks, else rank 0's own. keep_peaks: torch.cuda's peak counters are not reset, and a
    step's peak is that of the run so far. annotate: spillway.annotate() is called after the first step.
    """

    def __init__(self, *, over_ranks: bool = True, keep_peaks: bool = False, annotate: bool = True) -> None:
        self.meter = StepMeter(keeps_peaks=keep_peaks, over_ranks=over_ranks, annotates=annotate)
        self._metrics: dict[str, float] = {}

    @property
    def last(self) -> Step | None:
        """The step that ended last, in bytes, of this rank."""
        return self.meter.last

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        go_before_loggers(self)
        self.meter.begin_run()
        self._metrics = {}

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        self.meter.begin(state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        self.meter.end(state.global_step)
        if control.should_log:
            self._metrics |= self.meter.metrics()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Gradients are there, and the optimizer's states."""
        self.meter.annotate(others.get("model"), others.get("optimizer"))

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if control.should_log:
            self._metrics |= self.meter.metrics()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Of training alone: what else is logged, such as an evaluation, says nothing of a step."""
        if logs is None or not self._metrics or "loss" not in logs:
            return
        logs.update(self._metrics)
        if state.log_history:
            state.log_history[-1].update(self._metrics)
        self._metrics = {}


def go_before_loggers(callback: TrainerCallback) -> None:
    """The Trainer calls its loggers before the callbacks of users, who could add nothing to a log then. It tells no
    callback where the others are; it is up the stack.

    Behind DefaultFlowCallback, which says when something is logged. Who comes later in the list is called once still.
    """
    frame = sys._getframe(1)
    while frame is not None:
        callbacks = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(callbacks, list) and callback in callbacks:
            callbacks.remove(callback)
            flow = (at for at, each in enumerate(callbacks) if isinstance(each, DefaultFlowCallback))
            callbacks.insert(next(flow, -1) + 1, callback)
            return
        frame = frame.f_back  # type: ignore[assignment]
