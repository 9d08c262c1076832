#!/usr/bin/env python3
"""Writes small_transformer.pickle.gz: a synthetic trace in the form of torch.cuda.memory._dump_snapshot().

No model ran. The script imitates the order and sizes of the allocations of a few training steps of a small decoder-only
transformer (bf16 weights, AdamW states created in the first step, batches of varying length, gradients reduced in
buckets on a second stream, recorded after the weights were loaded). It is small enough for a repository and shaped
like a recorded one: blocks that are live before the first event, blocks that outlive the last, and frees that another
stream holds back. Same seed, same bytes.

usage: make_trace.py [--output FILE] [--steps N] [--seed N]
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "synthetic"))
from recorder import Recorder  # noqa: E402

HIDDEN, HEADS, FEED_FORWARD, LAYERS, VOCABULARY, BATCH = 1024, 16, 2816, 8, 32000, 4
COMMUNICATION = 7


class Model:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        shapes = [VOCABULARY * HIDDEN]
        for _ in range(LAYERS):
            shapes += [3 * HIDDEN * HIDDEN, HIDDEN * HIDDEN, 2 * HIDDEN * FEED_FORWARD, FEED_FORWARD * HIDDEN]
            shapes += [HIDDEN, HIDDEN]
        shapes += [HIDDEN]
        self.shapes = shapes
        self.weights = [recorder.allocate(2 * n) for n in shapes]
        self.states: list[int] = []

    def layer(self, tokens: int, length: int) -> list[int]:
        """Forward of one layer: what it keeps for the backward pass."""
        a, kept = self.recorder.allocate, []
        kept.append(a(2 * tokens * HIDDEN))  # normalised input
        kept.append(a(4 * tokens))  # its inverse deviation
        qkv = a(6 * tokens * HIDDEN)
        kept += [a(2 * tokens * HIDDEN) for _ in range(3)]  # q, k, v after rotation
        self.recorder.free(qkv)
        kept.append(a(2 * tokens * HIDDEN))  # attention output
        kept.append(a(4 * BATCH * HEADS * length))  # log-sum-exp
        projected = a(2 * tokens * HIDDEN)
        kept.append(a(2 * tokens * HIDDEN))  # residual
        self.recorder.free(projected)
        kept.append(a(2 * tokens * HIDDEN))
        kept.append(a(4 * tokens))
        kept.append(a(4 * tokens * FEED_FORWARD))  # gate and up
        kept.append(a(2 * tokens * FEED_FORWARD))  # their product
        down = a(2 * tokens * HIDDEN)
        kept.append(a(2 * tokens * HIDDEN))
        self.recorder.free(down)
        return kept

    def layer_backward(self, kept: list[int], tokens: int) -> list[int]:
        """Backward of one layer: frees what it kept, returns its gradients."""
        a, free = self.recorder.allocate, self.recorder.free
        gradients = []
        incoming = a(2 * tokens * HIDDEN)
        product = a(2 * tokens * FEED_FORWARD)
        gradients.append(a(2 * FEED_FORWARD * HIDDEN))
        both = a(4 * tokens * FEED_FORWARD)
        free(product)
        gradients.append(a(4 * HIDDEN * FEED_FORWARD))
        for block in reversed(kept[8:]):
            free(block)
        free(both)
        through = a(2 * tokens * HIDDEN)
        gradients += [a(2 * HIDDEN), a(2 * HIDDEN * HIDDEN)]
        attention = [a(2 * tokens * HIDDEN) for _ in range(3)]
        workspace = a(4 * tokens * HIDDEN)
        free(workspace)
        for block in reversed(kept[:8]):
            free(block)
        gradients.append(a(6 * HIDDEN * HIDDEN))
        for block in attention:
            free(block)
        gradients.append(a(2 * HIDDEN))
        free(through)
        free(incoming)
        return gradients

    def step(self, length: int) -> None:
        recorder, tokens = self.recorder, BATCH * length
        batch = [recorder.allocate(8 * tokens) for _ in range(2)]
        hidden = recorder.allocate(2 * tokens * HIDDEN)
        kept = [self.layer(tokens, length) for _ in range(LAYERS)]
        logits = recorder.allocate(2 * tokens * VOCABULARY)
        losses = recorder.allocate(4 * tokens)
        gradient = recorder.allocate(2 * tokens * VOCABULARY)
        recorder.free(logits)
        gradients = [recorder.allocate(2 * VOCABULARY * HIDDEN)]
        recorder.free(gradient)
        recorder.free(losses)
        held: list[int] = []
        for i in reversed(range(LAYERS)):
            mine = self.layer_backward(kept[i], tokens)
            # One bucket a layer is reduced on the second stream while the next layer computes; the bucket is
            # freed at once and held by that stream for about two layers.
            bucket = recorder.allocate(sum(recorder.size(g) for g in mine), COMMUNICATION)
            gradients += mine
            while len(held) > 2:
                recorder.complete(held.pop(0))
            recorder.request_free(bucket)
            held.append(bucket)
        recorder.free(hidden)
        for bucket in held:
            recorder.complete(bucket)
        if not self.states:
            self.states = [recorder.allocate(4 * n) for n in self.shapes for _ in range(2)]
        norms = recorder.allocate(4 * len(gradients))
        recorder.free(norms)
        for block in gradients:
            recorder.free(block)
        for block in batch:
            recorder.free(block)


def record(steps: int, seed: int) -> Recorder:
    rng = random.Random(seed)
    recorder = Recorder()
    model = Model(recorder)
    recorder.recording = True
    for _ in range(steps):
        model.step(64 * rng.randint(6, 16))
    return recorder


def main() -> None:
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=here / "small_transformer.pickle.gz")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    record(options.steps, options.seed).write(options.output)


if __name__ == "__main__":
    main()
