"""Caches of keys and values of running sequences, in the three ways that they grow."""

from __future__ import annotations

from recorder import Recorder

from workloads.transformer import Model


class ConcatenatedCache:
    """A batch of equally long sequences; every token makes each layer's keys and values anew, one longer."""

    def __init__(self, recorder: Recorder, model: Model, batch: int, length: int) -> None:
        self.recorder = recorder
        self.token_bytes = 2 * batch * model.kv_width
        self.length = length
        self.blocks = [recorder.allocate(self.token_bytes * length) for _ in range(2 * model.layers)]

    def append_token(self) -> None:
        self.length += 1
        for i, old in enumerate(self.blocks):
            self.blocks[i] = self.recorder.allocate(self.token_bytes * self.length)
            self.recorder.free(old)

    def leave(self) -> None:
        for block in self.blocks:
            self.recorder.free(block)


class ChunkedCache:
    """One sequence. When its chunks are full, each layer gets another one, or is copied to a block one chunk longer."""

    def __init__(self, recorder: Recorder, model: Model, length: int, chunk: int, copied: bool) -> None:
        self.recorder = recorder
        self.token_bytes = 2 * 2 * model.kv_width
        self.length, self.chunk, self.copied = length, chunk, copied
        self.capacity = -(-length // chunk) * chunk
        self.blocks = [[recorder.allocate(self.token_bytes * self.capacity)] for _ in range(model.layers)]

    def append_token(self) -> None:
        self.length += 1
        if self.length <= self.capacity:
            return
        self.capacity += self.chunk
        for layer in self.blocks:
            if self.copied:
                old = layer.pop()
                layer.append(self.recorder.allocate(self.token_bytes * self.capacity))
                self.recorder.free(old)
            else:
                layer.append(self.recorder.allocate(self.token_bytes * self.chunk))

    def leave(self) -> None:
        for layer in self.blocks:
            for block in layer:
                self.recorder.free(block)
