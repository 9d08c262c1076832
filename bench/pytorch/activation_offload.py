#!/usr/bin/env python3
"""Activation offload of a transformer of 24 layers in modelled time; prints JSON.

The program runs on the simulated device, which keeps accounts and no bytes, in the time of an H100 SXM
(modelled_time.py) whose link has its own bandwidth, half and twice that. Compared are no offload, PyTorch's
save_on_cpu, one that copies on a stream of its own and fetches when asked, and spillway.offload_activations(). To be
run by the Python of .venv.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulated import ROOT, enter, run

LAYERS, TOKENS = 24, 512
WIDTHS = (4096, 6144, 8192, 12288)
LINKS = (0.5, 1.0, 2.0)
# A program learns from the first steps; then come those that count.
LEARNING_STEPS, STEPS = 3, 6
MIN_BYTES = 1 << 20
STASHED = 5
STRATEGIES = ("none", "save_on_cpu", "own_stream", "spillway")
DEVICE = "capacity:2TiB,races:off,backing:none,completion:instant"


def layers_of(torch: Any, width: int, layers: int, heads_of: int = 128) -> Any:
    """Of a transformer, as modules that run one after the other. `heads_of`: numbers of each head."""
    nn, functional = torch.nn, torch.nn.functional

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)
            self.projection = nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            q, k, v = (each.unflatten(-1, (-1, heads_of)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.projection(mixed.transpose(1, 2).flatten(-2))

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = Attention()
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    return nn.ModuleList(Layer() for _ in range(layers))


def make_model(torch: Any, width: int, layers: int) -> Any:
    class Transformer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers_of(torch, width, layers)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    with torch.device("cuda"):
        return Transformer().to(torch.bfloat16)


# ---- Strategies: what is around the forward pass


class OwnStream:
    """Copies on one stream of its own, keeps the last few on the device, and fetches when asked."""

    def __init__(self, torch: Any, model: Any, time: Any) -> None:
        self._torch, self._time = torch, time
        self._stream = torch.cuda.Stream()
        self._own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self._recent: collections.deque[tuple[Any, float]] = collections.deque()
        self._tensors: dict[int, Any] = {}
        self._next = 0

    def hooks(self) -> Any:
        return self._torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Any) -> Any:
        torch, time = self._torch, self._time
        if tensor.nbytes < MIN_BYTES or tensor.untyped_storage()._cdata in self._own:
            return tensor
        main = torch.cuda.current_stream()
        self._stream.wait_stream(main)
        time.wait(self._stream, time.now(main))
        with torch.cuda.stream(self._stream):
            copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
            copy.copy_(tensor, non_blocking=True)
        number, self._next = self._next, self._next + 1
        done = time.now(self._stream)
        time.is_read_until(tensor, done)
        self._tensors[number] = tensor
        self._recent.append((number, done))
        if len(self._recent) > STASHED:
            oldest, ended = self._recent.popleft()
            time.wait(main, ended)
            main.wait_stream(self._stream)
            self._tensors.pop(oldest, None)
        return number, copy

    def _unpack(self, packed: Any) -> Any:
        torch, time = self._torch, self._time
        if isinstance(packed, torch.Tensor):
            return packed
        number, copy = packed
        if number in self._tensors:
            return self._tensors.pop(number)
        main = torch.cuda.current_stream()
        self._recent.clear()
        time.wait(self._stream, time.now(main))
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            back = copy.to("cuda", non_blocking=True)
        time.wait(main, time.now(self._stream))
        main.wait_stream(self._stream)
        back.record_stream(main)
        return back


def follow_stashes(time: Any) -> None:
    """The copies of Spillway, which are no operators, take their time of the model."""
    stashes: Any = importlib.import_module("spillway._offload.stashes")
    put, begin, finish = stashes.put, stashes.Stash.begin_get, stashes.Stash.finish_get
    wait = stashes.Stash.wait_until_copied

    def timed_put(tensor: Any, to: int) -> Any:
        out, _ = stashes.streams(tensor.device.index)
        stash = put(tensor, to)
        if stash is not None:
            time.wait(out, time.now())
            stash.gone = time.copy("out", tensor.untyped_storage().nbytes(), out)
            time.is_read_until(tensor, stash.gone)
        return stash

    def timed_begin(stash: Any) -> None:
        _, back = stashes.streams(stash._index)
        begin(stash)
        time.wait(back, max(time.now(), stash.gone))
        stash.back = time.copy("in", stash._size, back)

    def timed_finish(stash: Any) -> Any:
        time.wait(None, stash.back)
        return finish(stash)

    def timed_wait(stash: Any) -> None:
        time.wait(None, stash.gone)
        wait(stash)

    stashes.Stash.wait_until_copied = timed_wait
    stashes.put, stashes.Stash.begin_get, stashes.Stash.finish_get = timed_put, timed_begin, timed_finish


@contextlib.contextmanager
def around(torch: Any, strategy: Any) -> Iterator[None]:
    if isinstance(strategy, OwnStream):
        with strategy.hooks():
            yield
    elif strategy == "save_on_cpu":
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            yield
    else:
        yield


# ---- The program


def program(name: str, width: int, tokens: int, layers: int, link: float) -> dict[str, Any]:
    """What the last step took, and what was learned until then."""
    torch: Any = importlib.import_module("torch")
    modelled: Any = importlib.import_module("modelled_time")
    gpu = dataclasses.replace(
        modelled.H100, out_bytes=link * modelled.H100.out_bytes, in_bytes=link * modelled.H100.in_bytes
    )
    time = modelled.Modelled(gpu)
    model = make_model(torch, width, layers)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        time.lasts([parameter, parameter.grad])
    strategy: Any = OwnStream(torch, model, time) if name == "own_stream" else name
    handle: Any = None
    if name == "spillway":
        follow_stashes(time)
        spillway: Any = importlib.import_module("spillway")
        handle = spillway.offload_activations(model, ["layers.*"], min_bytes=MIN_BYTES, clock=modelled.Clock(time))
    x = torch.zeros(1, tokens, width, device="cuda", dtype=torch.bfloat16)
    base = torch.cuda.memory_allocated()
    with time:
        for _ in range(STEPS):
            torch.cuda.reset_peak_memory_stats()
            time.begin_step()
            with around(torch, strategy):
                loss = model(x).sum()
            loss.backward()
            del loss
            times = time.end_step()
            copied = dict(time.copied)
    row = {"step_ns": times.step_ns, "peak_bytes": times.peak_bytes, "out_bytes": copied["out"]}
    row |= {"in_bytes": copied["in"], "device_peak_bytes": torch.cuda.max_memory_allocated() - base}
    if handle is not None:
        stats = handle.stats()
        later = stats["steps"][LEARNING_STEPS:]
        row |= {name: sum(step[name] for step in later) for name in ("hits", "late", "early", "kept", "stashed")}
        row["wait_ns"] = stats["steps"][-1]["wait_ns"]
        row["depth"] = stats["depth"]
    return row


def measure(name: str, width: int, tokens: int, layers: int, link: float) -> dict[str, Any]:
    print(f"width {width}, link x{link:g}, {name}", file=sys.stderr)
    allocator = "full" if name == "spillway" else "native"
    (outcome,) = run(functools.partial(program, name, width, tokens, layers, link), allocator, DEVICE)
    if outcome.failure:
        sys.exit(f"activation_offload.py: {name}, width {width}: {outcome.failure.strip().splitlines()[-1]}")
    assert isinstance(outcome.value, dict)
    return outcome.value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    parser.add_argument("--width", type=int, action="append", metavar="N", help=f"repeatable; default: {WIDTHS}")
    parser.add_argument("--link", type=float, action="append", metavar="SHARE", help=f"repeatable; default: {LINKS}")
    parser.add_argument("--tokens", type=int, default=TOKENS, metavar="N")
    parser.add_argument("--layers", type=int, default=LAYERS, metavar="N")
    options = parser.parse_args()
    for width in options.width or ():
        if width < 128 or width % 128 != 0:
            parser.error(f"--width {width}: a multiple of 128")
    for link in options.link or ():
        if not link > 0:
            parser.error(f"--link {link}: above 0")
    if options.tokens < 1 or options.layers < 1:
        parser.error("--tokens and --layers: at least 1")
    enter(options.build.resolve())
    importlib.import_module("torch.utils.flop_counter")
    rows = []
    for width in options.width or WIDTHS:
        none = measure("none", width, options.tokens, options.layers, 1.0)
        for link in options.link or LINKS:
            for name in STRATEGIES:
                row = none if name == "none" else measure(name, width, options.tokens, options.layers, link)
                ratios = {f"{key}_ratio": row[f"{key}"] / none[f"{key}"] for key in ("step_ns", "peak_bytes")}
                rows.append({"width": width, "link": link, "strategy": name, **row, **ratios})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
