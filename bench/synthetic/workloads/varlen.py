"""Training on sequences of random length, padded to the longest of the batch, with activations computed again."""

from __future__ import annotations

from draws import Draws
from recorder import Recorder

from workloads.transformer import LLAMA_3B, Optimizer, train_with_recompute

BATCH = 4
LONGEST = 2048
MEAN_LENGTH = 450


def record(recorder: Recorder, draws: Draws, steps: int) -> None:
    for elements in LLAMA_3B.shapes:
        recorder.allocate(2 * elements)
    optimizer = Optimizer(recorder, LLAMA_3B.shapes, bytes_of_state=2)
    recorder.recording = True
    for _ in range(steps):
        lengths = [min(LONGEST, 16 + int(MEAN_LENGTH * draws.exponential())) for _ in range(BATCH)]
        optimizer.step(train_with_recompute(recorder, LLAMA_3B, BATCH, max(lengths)))
