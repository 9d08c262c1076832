"""Fully sharded training of a 7B model on 64 ranks, with two side streams.

Before a layer runs, its parameters are gathered from all ranks into one flat block, allocated on the gather stream
and used on the compute stream; the next layer's gather is issued before the layer itself (prefetch). In the backward
pass the layer's gradients, made on the compute stream, are cast and scattered on the reduce stream. Whatever one
stream allocated and another used is freed after record_stream: requested at once, completed when the other stream has
come past it. As in PyTorch, the host waits when two gathered layers are freed and not yet completed.
"""

from __future__ import annotations

from draws import Draws
from recorder import COMPUTE, Recorder, round_up

from workloads.transformer import Model, Optimizer, Tape, head_and_loss, layer_backward, layer_forward

MODEL = Model(hidden=4096, layers=32, heads=32, kv_heads=32, feed_forward=11008, vocabulary=32000)
RANKS = 64
BATCH, LENGTH = 4, 4096
TOKENS = BATCH * LENGTH
GATHER, REDUCE = 7, 8
MOST_IN_FLIGHT = 2
# Allocations that the host is ahead of the other stream when it frees.
LEAST_LAG, MOST_LAG = 6, 40

# The layers, and last the unit of embedding, head and last norm, each flattened and padded to whole shards.
UNITS = [round_up(sum(MODEL.layer_shapes), RANKS)] * MODEL.layers + [round_up(sum(MODEL.ends_shapes), RANKS)]
ENDS = MODEL.layers


class Sharded:
    def __init__(self, recorder: Recorder, draws: Draws) -> None:
        self.recorder, self.draws = recorder, draws
        self.gathered: dict[int, int] = {}
        self.freed: list[int] = []
        self.gradients: list[int] = []

    def free_behind(self, block: int, user: int) -> None:
        self.recorder.free_behind(block, user, self.draws.between(LEAST_LAG, MOST_LAG))

    def gather(self, unit: int) -> None:
        if unit in self.gathered:
            return
        if len(self.freed) >= MOST_IN_FLIGHT:
            self.recorder.wait_until_free(self.freed.pop(0), COMPUTE)
        shard = self.recorder.allocate(2 * UNITS[unit] // RANKS, GATHER)  # cast to bf16
        self.gathered[unit] = self.recorder.allocate(2 * UNITS[unit], GATHER)
        self.free_behind(shard, COMPUTE)

    def give_back(self, unit: int) -> None:
        block = self.gathered.pop(unit)
        self.free_behind(block, COMPUTE)
        self.freed.append(block)

    def reduce(self, unit: int, parts: list[int]) -> None:
        """Flattens the gradients of the unit's parameters and scatters their sum over the ranks."""
        flat = self.recorder.allocate(2 * UNITS[unit])
        for part in parts:
            self.recorder.free(part)
        wide = self.recorder.allocate(4 * UNITS[unit], REDUCE)
        self.gradients.append(self.recorder.allocate(4 * UNITS[unit] // RANKS, REDUCE))
        self.free_behind(flat, REDUCE)
        self.recorder.free(wide)

    def forward(self) -> list[int]:
        """Returns the input of each layer, and the last one's output."""
        inputs = [self.recorder.allocate(2 * TOKENS * MODEL.hidden)]
        for layer in range(MODEL.layers):
            self.gather(layer)
            if layer + 1 < MODEL.layers:
                self.gather(layer + 1)
            tape = Tape(self.recorder)
            layer_forward(tape, MODEL, BATCH, LENGTH)
            inputs.append(tape.take("output"))
            self.give_back(layer)
        return inputs

    def backward(self, inputs: list[int], gradient: int) -> int:
        for layer in reversed(range(MODEL.layers)):
            self.gather(layer)
            if layer > 0:
                self.gather(layer - 1)
            tape = Tape(self.recorder, saving=True)
            layer_forward(tape, MODEL, BATCH, LENGTH)
            tape.drop("output")
            tape.blocks["output_gradient"] = gradient
            parts = layer_backward(tape, MODEL, TOKENS)
            self.recorder.free(inputs.pop())
            gradient = tape.take("source_gradient")
            self.give_back(layer)
            self.reduce(layer, parts)
        return gradient

    def step(self, optimizer: Optimizer) -> None:
        recorder = self.recorder
        identifiers, labels = recorder.allocate(8 * TOKENS), recorder.allocate(8 * TOKENS)
        self.gather(ENDS)
        inputs = self.forward()
        gradient, ends = head_and_loss(recorder, MODEL, TOKENS, inputs.pop())
        gradient = self.backward(inputs, gradient)
        ends.append(recorder.allocate(2 * MODEL.vocabulary * MODEL.hidden))
        recorder.free(gradient)
        self.give_back(ENDS)
        self.reduce(ENDS, ends)
        for block in (identifiers, labels):
            recorder.free(block)
        optimizer.step(self.gradients)
        self.gradients = []


def record(recorder: Recorder, draws: Draws, steps: int) -> None:
    shards = [unit // RANKS for unit in UNITS]
    for elements in shards:
        recorder.allocate(4 * elements)
    optimizer = Optimizer(recorder, shards, bytes_of_state=4)
    training = Sharded(recorder, draws)
    recorder.recording = True
    for _ in range(steps):
        training.step(optimizer)
