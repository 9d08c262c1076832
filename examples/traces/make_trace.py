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
import gzip
import io
import pathlib
import pickle
import random
from typing import Any

HIDDEN, HEADS, FEED_FORWARD, LAYERS, VOCABULARY, BATCH = 1024, 16, 2816, 8, 32000, 4
COMPUTE, COMMUNICATION = 0, 7
MIB = 1 << 20


class Device:
    """Hands out addresses that are never used twice, and writes down what happened."""

    def __init__(self) -> None:
        self.next_address = 0x7F0000000000
        self.live: dict[int, tuple[int, int]] = {}
        self.held: list[int] = []
        self.events: list[dict[str, Any]] = []
        self.recording = False

    def note(self, action: str, address: int, size: int, stream: int) -> None:
        if self.recording:
            time = 1_700_000_000_000_000 + 10 * len(self.events)
            self.events.append(
                {"action": action, "addr": address, "size": size, "stream": stream, "time_us": time, "frames": []}
            )

    def allocate(self, size: int, stream: int = COMPUTE) -> int:
        address = self.next_address
        self.next_address += (size + 511) // 512 * 512
        self.live[address] = (size, stream)
        self.note("alloc", address, size, stream)
        return address

    def complete(self, address: int) -> None:
        size, stream = self.live.pop(address)
        self.note("free_completed", address, size, stream)

    def free(self, address: int, held: bool = False) -> None:
        """held: another stream still works on the block; wait() ends that."""
        size, stream = self.live[address]
        self.note("free_requested", address, size, stream)
        if held:
            self.held.append(address)
        else:
            self.complete(address)

    def wait(self, keep: int = 0) -> None:
        while len(self.held) > keep:
            self.complete(self.held.pop(0))

    def segments(self) -> list[dict[str, Any]]:
        rows = []
        for address, (size, stream) in sorted(self.live.items()):
            total = (size + 511) // 512 * 512
            state = "active_pending_free" if address in self.held else "active_allocated"
            block = {"address": address, "size": total, "requested_size": size, "state": state, "frames": []}
            rows.append(
                {
                    "device": 0,
                    "address": address,
                    "total_size": total,
                    "allocated_size": total,
                    "active_size": total,
                    "requested_size": size,
                    "stream": stream,
                    "segment_type": "small" if size <= MIB else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [block],
                }
            )
        return rows


class Model:
    def __init__(self, device: Device) -> None:
        self.device = device
        shapes = [VOCABULARY * HIDDEN]
        for _ in range(LAYERS):
            shapes += [3 * HIDDEN * HIDDEN, HIDDEN * HIDDEN, 2 * HIDDEN * FEED_FORWARD, FEED_FORWARD * HIDDEN]
            shapes += [HIDDEN, HIDDEN]
        shapes += [HIDDEN]
        self.shapes = shapes
        self.weights = [device.allocate(2 * n) for n in shapes]
        self.states: list[int] = []

    def layer(self, tokens: int, length: int) -> list[int]:
        """Forward of one layer: what it keeps for the backward pass."""
        a, kept = self.device.allocate, []
        kept.append(a(2 * tokens * HIDDEN))  # normalised input
        kept.append(a(4 * tokens))  # its inverse deviation
        qkv = a(6 * tokens * HIDDEN)
        kept += [a(2 * tokens * HIDDEN) for _ in range(3)]  # q, k, v after rotation
        self.device.free(qkv)
        kept.append(a(2 * tokens * HIDDEN))  # attention output
        kept.append(a(4 * BATCH * HEADS * length))  # log-sum-exp
        projected = a(2 * tokens * HIDDEN)
        kept.append(a(2 * tokens * HIDDEN))  # residual
        self.device.free(projected)
        kept.append(a(2 * tokens * HIDDEN))
        kept.append(a(4 * tokens))
        kept.append(a(4 * tokens * FEED_FORWARD))  # gate and up
        kept.append(a(2 * tokens * FEED_FORWARD))  # their product
        down = a(2 * tokens * HIDDEN)
        kept.append(a(2 * tokens * HIDDEN))
        self.device.free(down)
        return kept

    def layer_backward(self, kept: list[int], tokens: int) -> list[int]:
        """Backward of one layer: frees what it kept, returns its gradients."""
        a, free = self.device.allocate, self.device.free
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
        device, tokens = self.device, BATCH * length
        batch = [device.allocate(8 * tokens) for _ in range(2)]
        hidden = device.allocate(2 * tokens * HIDDEN)
        kept = [self.layer(tokens, length) for _ in range(LAYERS)]
        logits = device.allocate(2 * tokens * VOCABULARY)
        losses = device.allocate(4 * tokens)
        gradient = device.allocate(2 * tokens * VOCABULARY)
        device.free(logits)
        gradients = [device.allocate(2 * VOCABULARY * HIDDEN)]
        device.free(gradient)
        device.free(losses)
        for i in reversed(range(LAYERS)):
            mine = self.layer_backward(kept[i], tokens)
            # One bucket a layer is reduced on the second stream while the next layer computes; the bucket is
            # freed at once and held by that stream for about two layers.
            bucket = device.allocate(sum(device.live[g][0] for g in mine), COMMUNICATION)
            gradients += mine
            device.wait(keep=2)
            device.free(bucket, held=True)
        device.free(hidden)
        device.wait()
        if not self.states:
            self.states = [device.allocate(4 * n) for n in self.shapes for _ in range(2)]
        norms = device.allocate(4 * len(gradients))
        device.free(norms)
        for block in gradients:
            device.free(block)
        for block in batch:
            device.free(block)


def trace(steps: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    device = Device()
    model = Model(device)
    device.recording = True
    for _ in range(steps):
        model.step(64 * rng.randint(6, 16))
    return {
        "segments": device.segments(),
        "device_traces": [device.events],
        "allocator_settings": {},
        "external_annotations": [],
    }


def main() -> None:
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=here / "small_transformer.pickle.gz")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as out:
        out.write(pickle.dumps(trace(options.steps, options.seed), protocol=4))
    options.output.write_bytes(packed.getvalue())


if __name__ == "__main__":
    main()
