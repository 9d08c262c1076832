"""Activations that are elsewhere, beside what else changes how modules run and where their tensors are: streams that
share a storage, sharded weights, torch.compile.
"""

from __future__ import annotations

import functools
import importlib
import time
import unittest
from typing import Any

import spillway
from activations_test import MIB, WIDTH, Save, Seen, batch, nothing_is_left
from on_seeds import Outcome, Program, torch
from spilling import every_seed, on_disk


def branches_share_a_storage(outcome: Outcome) -> None:
    """What one stream brought back another uses too."""
    seen: Seen = []
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    class Branches(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, value: int) -> Any:
            main = torch.cuda.current_stream()
            made = torch.full((WIDTH,), value, dtype=torch.float32, device="cuda")
            outs = []
            for stream in streams:
                stream.wait_stream(main)
                made.record_stream(stream)
                x.record_stream(stream)
                with torch.cuda.stream(stream):
                    outs.append(Save.apply(x, made, value, seen))
            for stream, out in zip(streams, outs, strict=True):
                main.wait_stream(stream)
                out.record_stream(main)
            return outs[0] + outs[1]

    model = Branches()
    handle = spillway.offload_activations(model)
    for step in range(3):
        y = model(batch(), step)
        torch.full((WIDTH,), -1.0, device="cuda")  # takes the memory, if it is free
        y.backward(torch.ones(WIDTH, device="cuda"))
        torch.cuda.synchronize()
        del y
        outcome.damaged += abs(len(seen) - 2) + sum(int((copy.cpu() != value).any()) for value, copy in seen)
        seen.clear()
    assert handle.stats()["steps"][0]["stashed"] == 1, handle.stats()
    nothing_is_left()


def sharded_weights_stay(outcome: Outcome) -> None:
    """Those of a layer are whole while it runs, in storages that the parameters had not before."""
    distributed = importlib.import_module("torch.distributed")
    store = importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    fully_shard = importlib.import_module("torch.distributed.fsdp").fully_shard
    distributed.init_process_group("fake", rank=0, world_size=2, store=store)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(4))).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    handle = spillway.offload_activations(model, ["*"], min_bytes=MIB)
    for rows in (32, 32, 512):
        before = handle.stats().get("stashed", 0)
        model(torch.zeros(rows, 1024, device="cuda")).sum().backward()
        # With few rows only the weights are that large. The last of them, and the input, are saved by nobody else.
        stashed = handle.stats().get("stashed", 0) - before
        assert stashed == 0 if rows == 32 else stashed > 0, (rows, handle.stats())
    distributed.destroy_process_group()
    nothing_is_left()


def storages_that_grow_again(outcome: Outcome) -> None:
    """The program makes its bytes anew while they are being copied back: what they were to come into is not let go
    before the copy is done, or will not be made.
    """
    count, width = 8, 8 * WIDTH
    whole = [torch.full((width,), float(number), device="cuda") for number in range(count)]
    size = whole[0].untyped_storage().nbytes()
    others = []

    class Read(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, tensor: Any) -> Any:
            ctx.save_for_backward(tensor)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            _ = ctx.saved_tensors
            others.append(torch.full((width,), -7.0, device="cuda"))  # takes memory that was let go
            return gradient, None

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, tensor: Any) -> None:
            super().__init__()
            self.tensors = [tensor]

        def grow(self) -> None:
            (tensor,) = self.tensors
            if tensor.untyped_storage().nbytes() == 0:
                tensor.untyped_storage().resize_(size)
                with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tensor):
                    tensor.fill_(3.0)

        def forward(self, x: Any) -> Any:
            (tensor,) = self.tensors
            self.grow()
            x = Read.apply(x, tensor.view(2, -1).t())
            tensor.untyped_storage().resize_(0)
            x.register_hook(lambda _: self.grow())
            return x

    model = torch.nn.Sequential(*map(Layer, whole))
    handle = spillway.offload_activations(model, to="disk")
    for kept in (True, False):
        y = model(torch.zeros(8, device="cuda", requires_grad=True))
        until_on_disk()
        y.backward(torch.ones(8, device="cuda"), retain_graph=kept)
        torch.cuda.synchronize()
        time.sleep(0.2)  # for the disk: nothing waits for what is not wanted any more
        torch.cuda.synchronize()
        outcome.damaged += sum(int((other.cpu() != -7).any()) for other in others)
        others.clear()
        del y
    handle.remove()
    nothing_is_left()


class Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(512, 512)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.gelu(self.linear(x))


def compiled(outcome: Outcome, how: str) -> None:
    """What compiled code saves goes as well; the hooks are not part of it."""
    model = torch.nn.Sequential(*(Block() for _ in range(3))).cuda()
    compile_it = functools.partial(torch.compile, backend="aot_eager")
    run = compile_it(model) if how in ("first", "used") else model
    if how == "used":
        run(torch.zeros(512, 512, device="cuda")).sum().backward()
    handle = spillway.offload_activations(run, ["*"], min_bytes=MIB // 4)
    if how == "last":
        run = compile_it(model)
    elif how == "layers":
        for layer in model:
            layer.compile(backend="aot_eager")
    for _ in range(3):
        run(torch.zeros(512, 512, device="cuda")).sum().backward()
    stats = handle.stats()
    assert stats["stashed"] >= 3 * 3 and len(stats["steps"]) == 3, stats
    handle.remove()
    nothing_is_left()


def until_on_disk() -> None:
    torch.cuda.synchronize()
    end = time.monotonic() + 60
    while spillway.tier_stats()["stash_host_bytes"] > 0:
        assert time.monotonic() < end, spillway.tier_stats()
        time.sleep(0.01)


PROGRAMS: list[Program] = [
    branches_share_a_storage,
    sharded_weights_stay,
    on_disk(storages_that_grow_again),
    *(functools.partial(compiled, how=how) for how in ("first", "used", "last", "layers")),
]

OnEverySeed = every_seed(PROGRAMS, "capacity:1GiB")

if __name__ == "__main__":
    unittest.main()
