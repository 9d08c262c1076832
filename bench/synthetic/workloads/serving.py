"""A server of an 8B model: sequences come, are read at once (prefill), grow by a token in every step, and leave.

Single sequences keep caches in chunks of random kind; beside them one batch at a time runs with a cache that is
concatenated in every step. Decoding is taken to run in a captured graph, so a step allocates logits and what sampling
needs, no layer.
"""

from __future__ import annotations

from draws import Draws
from recorder import GIB, Recorder

from workloads.kv_cache import ChunkedCache, ConcatenatedCache
from workloads.transformer import Model, forward

MODEL = Model(hidden=4096, layers=32, heads=32, kv_heads=8, feed_forward=14336, vocabulary=128256)
CACHE_TOKENS = 12 * GIB // (4 * MODEL.kv_width * MODEL.layers)
CHUNK = 64
LONGEST_PROMPT = 16384
MEAN_PROMPT = 2500
MEAN_ANSWER = 160
ARRIVALS_PER_STEP = 0.15
FIRST_ARRIVALS = 24


class Sequence:
    def __init__(self, cache: ChunkedCache | ConcatenatedCache, answer: int, rows: int) -> None:
        self.cache, self.left, self.rows = cache, answer, rows

    @property
    def tokens(self) -> int:
        """That it will hold at its end."""
        return self.rows * (self.cache.length + self.left)


def draw_prompt(draws: Draws) -> int:
    return min(LONGEST_PROMPT, 16 + int(MEAN_PROMPT * draws.exponential()))


def draw_answer(draws: Draws) -> int:
    return 1 + int(MEAN_ANSWER * draws.exponential())


def prefill(recorder: Recorder, batch: int, prompt: int) -> None:
    residual = forward(recorder, MODEL, batch, prompt)
    logits = recorder.allocate(4 * batch * MODEL.vocabulary)
    recorder.free(residual)
    recorder.free(logits)


def sample(recorder: Recorder, rows: int) -> None:
    allocate, free = recorder.allocate, recorder.free
    logits = allocate(2 * rows * MODEL.vocabulary)
    scores = allocate(4 * rows * MODEL.vocabulary)
    free(logits)
    probabilities = allocate(4 * rows * MODEL.vocabulary)
    free(scores)
    tokens = allocate(8 * rows)
    free(probabilities)
    free(tokens)


class Server:
    def __init__(self, recorder: Recorder, draws: Draws) -> None:
        self.recorder, self.draws = recorder, draws
        self.running: list[Sequence] = []
        self.waiting = FIRST_ARRIVALS

    def admit(self) -> None:
        while self.waiting > 0:
            prompt, answer = draw_prompt(self.draws), draw_answer(self.draws)
            if prompt + answer + sum(sequence.tokens for sequence in self.running) > CACHE_TOKENS:
                return
            self.waiting -= 1
            copied = self.draws.happens(0.5)
            cache = ChunkedCache(self.recorder, MODEL, prompt, CHUNK, copied)
            prefill(self.recorder, 1, prompt)
            self.running.append(Sequence(cache, answer, rows=1))

    def admit_batch(self) -> None:
        rows, prompt, answer = self.draws.between(2, 8), self.draws.between(32, 1024), draw_answer(self.draws)
        prefill(self.recorder, rows, prompt)
        cache = ConcatenatedCache(self.recorder, MODEL, rows, prompt)
        self.running.append(Sequence(cache, answer, rows))

    def step(self) -> None:
        if self.draws.happens(ARRIVALS_PER_STEP):
            self.waiting += 1
        self.admit()
        if not any(sequence.rows > 1 for sequence in self.running):
            self.admit_batch()
        for sequence in self.running:
            sequence.cache.append_token()
            sequence.left -= 1
        sample(self.recorder, sum(sequence.rows for sequence in self.running))
        for sequence in self.running:
            if sequence.left == 0:
                sequence.cache.leave()
        self.running = [sequence for sequence in self.running if sequence.left > 0]


def record(recorder: Recorder, draws: Draws, steps: int) -> None:
    for elements in MODEL.shapes:
        recorder.allocate(2 * elements)
    recorder.recording = True
    server = Server(recorder, draws)
    for _ in range(steps):
        server.step()
