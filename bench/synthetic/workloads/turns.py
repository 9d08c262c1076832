"""Reinforcement learning from feedback in one process: turns of generation, scoring and training of a 3B model.

A turn generates answers to a batch of prompts with a concatenated cache, reads them with the policy and with a frozen
copy of it to get log-probabilities, and trains on them in micro-batches, each padded to its longest answer. Decoding
is taken to run in a captured graph, so a step allocates the cache, logits and what sampling needs.
"""

from __future__ import annotations

from draws import Draws
from recorder import Recorder

from workloads.kv_cache import ConcatenatedCache
from workloads.transformer import LLAMA_3B as MODEL
from workloads.transformer import Optimizer, forward, train_with_recompute

SEQUENCES = 20
MICRO_BATCH = 4
LONGEST_ANSWER = 192
MEAN_ANSWER = 40


def generate(recorder: Recorder, prompt: int, answer: int) -> None:
    allocate, free = recorder.allocate, recorder.free
    residual = forward(recorder, MODEL, SEQUENCES, prompt)
    cache = ConcatenatedCache(recorder, MODEL, SEQUENCES, prompt)
    free(residual)
    for _ in range(answer):
        cache.append_token()
        logits = allocate(2 * SEQUENCES * MODEL.vocabulary)
        scores = allocate(4 * SEQUENCES * MODEL.vocabulary)
        free(logits)
        tokens = allocate(8 * SEQUENCES)
        free(scores)
        free(tokens)
    cache.leave()


def score(recorder: Recorder, length: int) -> int:
    """Log-probabilities of the tokens of one micro-batch."""
    allocate, free = recorder.allocate, recorder.free
    tokens = MICRO_BATCH * length
    residual = forward(recorder, MODEL, MICRO_BATCH, length)
    logits = allocate(2 * tokens * MODEL.vocabulary)
    free(residual)
    wide = allocate(4 * tokens * MODEL.vocabulary)
    free(logits)
    scores = allocate(4 * tokens)
    free(wide)
    return scores


def record(recorder: Recorder, draws: Draws, turns: int) -> None:
    for elements in 2 * MODEL.shapes:  # the policy and its frozen copy
        recorder.allocate(2 * elements)
    optimizer = Optimizer(recorder, MODEL.shapes, bytes_of_state=2)
    recorder.recording = True
    for _ in range(turns):
        prompt = draws.between(64, 512)
        answers = [min(LONGEST_ANSWER, 8 + int(MEAN_ANSWER * draws.exponential())) for _ in range(SEQUENCES)]
        generate(recorder, prompt, max(answers))
        lengths = [prompt + max(answers[i : i + MICRO_BATCH]) for i in range(0, SEQUENCES, MICRO_BATCH)]
        scores = [score(recorder, length) for _ in range(2) for length in lengths]
        gradients: list[int] = []
        for length in lengths:
            fresh = train_with_recompute(recorder, MODEL, MICRO_BATCH, length)
            if not gradients:
                gradients = fresh
            else:
                for block in fresh:  # added to those of the first micro-batch
                    recorder.free(block)
        for block in scores:
            recorder.free(block)
        optimizer.step(gradients)
