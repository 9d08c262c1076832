"""Activations that are elsewhere between forward and backward, on the late simulated device: the bytes that come back
are those that left, no race is reported, and nothing stays behind.

Kernels compute nothing there, so layers save tensors of known bytes, and the backward pass copies what it gets.
"""

from __future__ import annotations

import contextlib
import functools
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import spillway
from on_seeds import Outcome, Program, check_counters, torch
from spilling import configure, every_seed, on_disk, refused
from spillway._offload import stashes
from spillway._offload.schedule import Schedule

checkpoint: Any = torch.utils.checkpoint.checkpoint
MIB = 1 << 20
WIDTH = 512 << 10  # elements of an activation, 2 MiB

Seen = list[tuple[int, Any]]  # what should be there, and a copy of what was


class Save(torch.autograd.Function):  # type: ignore[misc]
    """Saves a tensor, and copies it when it comes back."""

    @staticmethod
    def forward(ctx: Any, x: Any, made: Any, value: int, seen: Seen) -> Any:
        ctx.save_for_backward(made)
        ctx.value, ctx.seen = value, seen
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        (made,) = ctx.saved_tensors
        ctx.seen.append((ctx.value, made.clone()))
        return gradient, None, None, None


class Layer(torch.nn.Module):  # type: ignore[misc]
    """Saves an activation whole, as a view, and what the next one makes of its place."""

    def __init__(self, number: int, seen: Seen) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, WIDTH // 2, device="cuda"))
        self.register_buffer("scale", torch.ones(WIDTH, device="cuda"))
        self.number = number
        self.seen = seen
        self.calls = 0

    def forward(self, x: Any) -> Any:
        if torch._C._current_graph_task_id() == -1:
            self.calls += 1  # a checkpoint makes the same again
        value = 100 * self.calls + self.number
        made = torch.full((4, WIDTH // 4), value, dtype=torch.float32, device="cuda")
        x = Save.apply(x, made, value, self.seen)
        x = Save.apply(x, made[1:3].t(), value, self.seen)
        x = x * self.weight.flatten() * self.scale
        del made
        torch.full((WIDTH,), -1.0, device="cuda")  # takes the memory, if it is free
        return x


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, layers: int = 6, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.seen: Seen = []
        self.layers = torch.nn.ModuleList(Layer(number, self.seen) for number in range(layers))
        self.run = run or (lambda layer, x: layer(x))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.run(layer, x)
        return x

    def damaged(self, wanted: int) -> int:
        """How many of the copies are wrong, or missing; they are forgotten."""
        wrong = abs(len(self.seen) - wanted) + sum(int((copy.cpu() != value).any()) for value, copy in self.seen)
        self.seen.clear()
        return wrong


def batch() -> Any:
    return torch.zeros(WIDTH, device="cuda", requires_grad=True)


def train(outcome: Outcome, model: Model, steps: int = 4, wanted: int = 12) -> None:
    for _ in range(steps):
        model(batch()).backward(torch.ones(WIDTH, device="cuda"))
        outcome.damaged += model.damaged(wanted)
        check_counters()


def nothing_is_left() -> None:
    """But perhaps for one small stash, whose making gives up those that the device is done with."""
    torch.cuda.synchronize()
    stashes.put(torch.zeros(64, device="cuda"), 1)
    stats = spillway.tier_stats()
    assert stats["stashes"] <= 1 and stats["stash_host_bytes"] <= 4096 and stats["stash_disk_bytes"] == 0, stats


# ---- Programs


def bytes_come_back(outcome: Outcome, to: str = "host") -> None:
    """torchtune#1867: memory served again while it was copied out. Megatron#7398: it was copied back before that."""
    model = Model()
    handle = spillway.offload_activations(model, ["layers.*"], to=to)
    train(outcome, model)
    stats = handle.stats()
    assert len(stats["steps"]) == 4 and stats["stashed"] >= 4 * 6, stats
    # Two tensors of one storage are one copy, there and back; the weight and the buffer stay.
    assert stats["steps"][0]["stashed_bytes"] <= 6 * 2 * 2 * MIB, stats
    assert stats["fetched_bytes"] <= stats["stashed_bytes"], stats
    assert stats["hits"] > stats["late"], stats
    handle.remove()
    before = spillway.tier_stats()["stash_puts"]
    train(outcome, model, 1)
    torch.cuda.synchronize()
    assert spillway.tier_stats()["stash_puts"] == before
    nothing_is_left()


def memory_is_lower_between(outcome: Outcome) -> None:
    held = []
    model = Model()
    for targets in ([], ["layers.*"]):
        if targets:
            spillway.offload_activations(model, targets)
        for _ in range(2):
            x = model(batch())
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_allocated())
            x.backward(torch.ones(WIDTH, device="cuda"))
            outcome.damaged += model.damaged(12)
            del x
    assert held[2] <= held[1] - 8 * 2 * MIB, held


def checkpointed(outcome: Outcome, reentrant: bool) -> None:
    model = Model(run=functools.partial(checkpoint, use_reentrant=reentrant))
    handle = spillway.offload_activations(model, ["*"])
    for _ in range(3):
        model(batch()).backward(torch.ones(WIDTH, device="cuda"))
        outcome.damaged += model.damaged(12)
    # What checkpoints keep are their inputs: one of each layer, and no more.
    assert 0 < handle.stats()["stashed"] <= 3 * 6, handle.stats()
    assert len(handle.stats()["steps"]) == 3, handle.stats()
    nothing_is_left()


def checkpoint_around_a_target(outcome: Outcome) -> None:
    """The checkpoint is the outer one, so it decides: nothing is put away that would be made again."""
    model = Model(run=functools.partial(checkpoint, use_reentrant=False))
    handle = spillway.offload_activations(model, ["layers.*"])
    train(outcome, model, 2)
    assert handle.stats().get("stashed", 0) == 0, handle.stats()


def graph_is_kept(outcome: Outcome) -> None:
    """Twice through one graph, then through the gradient's own."""
    model = Model()
    spillway.offload_activations(model, ["layers.*"])
    for _ in range(2):
        x = batch()
        y = model(x)
        for _ in range(2):
            y.backward(torch.ones(WIDTH, device="cuda"), retain_graph=True)
            outcome.damaged += model.damaged(12)
        (gradient,) = torch.autograd.grad(y, x, torch.ones(WIDTH, device="cuda"), create_graph=True)
        outcome.damaged += model.damaged(12)
        del y, gradient
    nothing_is_left()


def same_layer_twice(outcome: Outcome) -> None:
    model = Model(2)
    model.layers = torch.nn.ModuleList([model.layers[0], model.layers[1], model.layers[0], model.layers[0]])
    handle = spillway.offload_activations(model, ["*"])
    train(outcome, model, 4, 8)
    assert handle.stats()["stashed"] > 0
    nothing_is_left()


def exception_in_the_middle(outcome: Outcome) -> None:
    def fail_at_four(layer: Layer, x: Any) -> Any:
        if layer.number == 4 and fails:
            raise ValueError("in the middle")
        return layer(x)

    def fail_inside(module: Any, arguments: Any) -> None:
        if fails:
            raise ValueError("inside")

    fails = False
    model = Model(run=fail_at_four)
    spillway.offload_activations(model, ["*"])
    train(outcome, model, 2)
    for way in (fail_at_four, fail_inside):
        if way is fail_inside:
            model.run = lambda layer, x: layer(x)
            model.layers[3].register_forward_pre_hook(fail_inside)
        fails = True
        try:
            model(batch())
        except ValueError:
            pass
        else:
            raise AssertionError("it does not fail")
        fails = False
        model.seen.clear()
        torch.cuda.synchronize()
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        train(outcome, model, 2)
    # A backward pass that is never made gives everything up, and one that ends in the middle.
    x = model(batch())
    del x
    model.layers[2].register_full_backward_hook(lambda *_: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        model(batch()).backward(torch.ones(WIDTH, device="cuda"))
    model.seen.clear()
    nothing_is_left()


def interrupted_in_the_middle(outcome: Outcome) -> None:
    """By the keyboard, after which PyTorch calls no hook: others are not taken for parts of what was interrupted."""

    def interrupt(layer: Any, x: Any) -> Any:
        if layer.number == 3:
            raise KeyboardInterrupt
        return layer(x)

    model, other = Model(run=interrupt), Model(2)
    handle = spillway.offload_activations(model, ["*"])
    for ends in (False, True):
        with contextlib.suppress(KeyboardInterrupt):
            model(batch())
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        if ends:
            handle.remove()
            puts = spillway.tier_stats()["stash_puts"]
            train(outcome, other, 2, 4)
            assert spillway.tier_stats()["stash_puts"] == puts
        else:
            model.run = lambda layer, x: layer(x)
            model.seen.clear()
            train(outcome, model)
            model.run = interrupt
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    model.seen.clear()
    nothing_is_left()


def lazy_layers(outcome: Outcome) -> None:
    """Whose parameters are there from the first forward pass on."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(512), torch.nn.LazyLinear(512)).cuda()
    handle = spillway.offload_activations(model, min_bytes=MIB // 4)
    for _ in range(3):
        model(torch.zeros(512, 512, device="cuda")).sum().backward()
    stats = handle.stats()
    assert stats["stashed"] + stats["kept"] == 6 and stats["stashed"] >= 2, stats
    handle.remove()
    nothing_is_left()


def changed_in_place(outcome: Outcome) -> None:
    """PyTorch's own error, whether the tensor left or was too small for it."""
    for count in (WIDTH, 64):
        made: list[Any] = []

        class Changing(torch.nn.Module):  # type: ignore[misc]
            def forward(self, x: Any, count: int = count, made: list[Any] = made) -> Any:
                made.append(torch.full((count,), 1.0, device="cuda"))
                return Save.apply(x, made[-1], 1, [])

        model = Changing()
        spillway.offload_activations(model)
        x = model(batch())
        torch.cuda.synchronize()
        made[-1].add_(1)
        try:
            x.backward(torch.ones(WIDTH, device="cuda"))
        except RuntimeError as problem:
            assert "modified by an inplace operation" in str(problem), problem
            assert "is at version 1; expected version 0" in str(problem), problem
        else:
            raise AssertionError("wrong gradients without a word")


def saved_before_and_after_a_change(outcome: Outcome) -> None:
    """One storage, saved, changed and saved again: the later bytes are the later ones."""
    seen: Seen = []

    class Twice(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            made = torch.full((WIDTH,), 1.0, device="cuda")
            unused = Save.apply(x, made, 1, seen)
            torch.cuda.synchronize()  # the copy of the first is done; the device may change its bytes
            made.fill_(2.0)
            return Save.apply(x, made, 2, seen), unused

    model = Twice()
    spillway.offload_activations(model)
    for _ in range(2):
        y, unused = model(batch())
        y.backward(torch.ones(WIDTH, device="cuda"))
        del unused
    outcome.damaged += len(seen) - 2 + sum(int((copy.cpu() != value).any()) for value, copy in seen)


def input_that_every_step_overwrites(outcome: Outcome) -> None:
    """It is changed only when the copy is done; once it is known that the program holds it, none is made."""
    seen: Seen = []
    static = torch.zeros(WIDTH, device="cuda")

    class Reading(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, value: int) -> Any:
            return Save.apply(x, static, value, seen)

    model = Reading()
    handle = spillway.offload_activations(model)
    for step in range(6):
        static.fill_(step)
        model(batch(), step).backward(torch.ones(WIDTH, device="cuda"))
        if step > 2:
            torch.cuda.synchronize()
    outcome.damaged += len(seen) - 6 + sum(int((copy.cpu() != value).any()) for value, copy in seen)
    stats = handle.stats()
    assert stats["reused"] >= 1 and stats["fetched_bytes"] == 0, stats
    assert stats["steps"][-1]["stashed"] == 0, stats
    nothing_is_left()


def no_room_keeps_it_here(outcome: Outcome) -> None:
    configure("pinned_limit:4MiB")
    model = Model()
    handle = spillway.offload_activations(model, ["layers.*"])
    train(outcome, model)
    stats = handle.stats()
    assert stats["refused"] > 0 and stats["kept"] >= stats["refused"], stats
    nothing_is_left()


def under_capture_all_stays(outcome: Outcome) -> None:
    model = Model(2)
    handle = spillway.offload_activations(model, ["layers.*"])
    gradient, x = torch.ones(WIDTH, device="cuda"), batch()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x).backward(gradient)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    model.seen.clear()
    puts = spillway.tier_stats()["stash_puts"]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).backward(gradient)
    assert spillway.tier_stats()["stash_puts"] == puts
    graph.replay()
    torch.cuda.synchronize()
    outcome.damaged += model.damaged(4)
    handle.remove()


def micro_batches(outcome: Outcome) -> None:
    """Two forward passes before the backward passes, the later one first."""
    model = Model(4)
    spillway.offload_activations(model, ["layers.*"])
    for _ in range(3):
        passes = [model(batch()) for _ in range(2)]
        while passes:
            passes.pop().backward(torch.ones(WIDTH, device="cuda"))
        outcome.damaged += model.damaged(16)
    nothing_is_left()


def other_streams(outcome: Outcome) -> None:
    """Forward on one stream, and so backward; the loss is on another."""
    model = Model()
    spillway.offload_activations(model, ["layers.*"])
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    for _ in range(3):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            x = model(batch())
        main.wait_stream(side)
        x.backward(torch.ones(WIDTH, device="cuda"))
        torch.cuda.synchronize()
        outcome.damaged += model.damaged(12)
    nothing_is_left()


def layers_on_streams_in_turn(outcome: Outcome) -> None:
    """What one stream asks for brings what another will use."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def run(layer: Layer, x: Any) -> Any:
        stream = streams[layer.number % 2]
        stream.wait_stream(torch.cuda.current_stream())
        x.record_stream(stream)
        with torch.cuda.stream(stream):
            x = layer(x)
        torch.cuda.current_stream().wait_stream(stream)
        x.record_stream(torch.cuda.current_stream())
        return x

    model = Model(run=run)
    spillway.offload_activations(model, ["layers.*"])
    for _ in range(3):
        model(batch()).backward(torch.ones(WIDTH, device="cuda"))
        torch.cuda.synchronize()
        outcome.damaged += model.damaged(12)
    nothing_is_left()


def transformer(outcome: Outcome) -> None:
    """A model of PyTorch's own, under autocast too, with an optimizer."""
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    layers = [torch.nn.TransformerEncoderLayer(64, 2, 256, batch_first=True) for _ in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    handle = spillway.offload_activations(model, ["*.linear?", "*.self_attn"], min_bytes=16 << 10)
    for step in range(4):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=step % 2 == 1):
            loss = model(torch.zeros(4, 64, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        check_counters()
    del loss
    assert handle.stats()["stashed"] > 20, handle.stats()
    nothing_is_left()


def eight_bits_move_less(outcome: Outcome) -> None:
    """Of one layer, whose bytes no kernel makes again here; those of the others come back as they were."""
    moved = []
    for int8 in ([], ["*.0"]):
        model = Model(2)
        handle = spillway.offload_activations(model, ["layers.*"], int8=int8)
        for _ in range(3):
            model(batch()).backward(torch.ones(WIDTH, device="cuda"))
            model.seen[:] = [(value, copy) for value, copy in model.seen if not int8 or value % 100 == 1]
            outcome.damaged += model.damaged(2 if int8 else 4)
            check_counters()
        moved.append(handle.stats()["steps"][0])
        handle.remove()
    exact, lossy = moved
    # Two storages of 2 MiB for each layer; those of one are a quarter of their size now, and a scale for each 1 KiB.
    assert exact["stashed"] == lossy["stashed"] == 4, moved
    assert lossy["stashed_bytes"] - 4 * MIB in range(MIB, MIB + (32 << 10)), moved
    assert lossy["fetched_bytes"] < exact["fetched_bytes"], moved
    assert lossy["away_bytes"] == exact["away_bytes"], moved
    nothing_is_left()


def a_storage_that_the_program_gave_up(outcome: Outcome) -> None:
    """What left comes back. What stayed is not there any more, and nobody else's bytes are taken for it."""
    seen: Seen = []
    made: list[Any] = []

    class Saving(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            made[:] = [torch.full((WIDTH,), 5.0, device="cuda")]
            return Save.apply(x, made[0], 5.0, seen)

    model = Saving()
    handle = spillway.offload_activations(model)
    for stays, size, is_lost in ((False, 0, False), (True, 0, True), (True, 8 * WIDTH, False)):
        with mock.patch.object(stashes, "put", return_value=None) if stays else contextlib.nullcontext():
            output = model(batch())
        made[0].untyped_storage().resize_(size)
        others = [torch.full((WIDTH,), 99.0, device="cuda") for _ in range(4)]
        try:
            output.backward(torch.ones(WIDTH, device="cuda"))
        except spillway.SpillwayError as problem:
            assert is_lost and "made its storage smaller" in str(problem), str(problem)
        else:
            assert not is_lost
            outcome.damaged += sum(int((copy.cpu() != value).any()) for value, copy in seen)
        seen.clear()
        del others, output
        check_counters()
    handle.remove()
    made.clear()
    nothing_is_left()


def eight_bits_are_planned_for_what_stays(outcome: Outcome) -> None:
    """It might go the next time, and would take as little."""
    learned: list[tuple[int, int]] = []
    learn = Schedule.learn

    def note(schedule: Schedule, uses: Any, room: int) -> None:
        learned.extend((use.carried, use.size) for use in uses if use.key in schedule.stays)
        learn(schedule, uses, room)

    model = Model(2)
    handle = spillway.offload_activations(model, ["layers.*"], int8=["*"])
    with mock.patch.object(Schedule, "learn", note):
        for _ in range(3):
            model(batch()).backward(torch.ones(WIDTH, device="cuda"))
            model.seen.clear()
            check_counters()
        handle.stats()
    handle.remove()
    assert learned and all(4 * carried in range(size, size + (128 << 10)) for carried, size in learned), learned
    nothing_is_left()


def eight_bits_are_for_those_who_ask(outcome: Outcome) -> None:
    """One storage, saved by a module that asked, by one that did not, and as another type."""
    seen: Seen = []
    made: list[Any] = []

    class Saving(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, as_bytes: bool = False) -> None:
            super().__init__()
            self.as_bytes = as_bytes

        def forward(self, x: Any) -> Any:
            tensor = made[-1].view(torch.int32) if self.as_bytes else made[-1]
            return Save.apply(x, tensor, made[-1].view(torch.int32)[0].item() if self.as_bytes else 3.0, seen)

    # Who asks need not be the innermost target.
    asked = torch.nn.Sequential(Saving())
    model = torch.nn.ModuleDict({"asked": asked, "bytes": Saving(as_bytes=True), "exact": Saving()})
    handle = spillway.offload_activations(model, ["*"], int8=["asked", "bytes"])
    for _ in range(2):
        made.append(torch.full((WIDTH,), 3.0, device="cuda"))
        x = batch()
        for name in ("asked", "bytes", "exact"):
            x = model[name](x)
        made.clear()
        x.backward(torch.ones(WIDTH, device="cuda"))
    torch.cuda.synchronize()
    exact = [(value, copy) for number, (value, copy) in enumerate(seen) if number % 3 != 2]
    outcome.damaged += len(seen) - 6 + sum(int((copy.cpu() != value).any()) for value, copy in exact)
    assert handle.stats()["steps"][0]["stashed"] == 2, handle.stats()
    seen.clear()
    nothing_is_left()


def mistakes_are_one_sentence(outcome: Outcome) -> None:
    model = Model(2)
    refused("no module matches '*.atn*'; the closest names are: layers", lambda: offload(model, ["*.atn*"]))
    refused("'nowhere' is not known; allowed: host, disk", lambda: offload(model, ["*"], to="nowhere"))
    refused(
        "int8='*.9' matches no target; they are: layers.0, layers.1", lambda: offload(model, ["layers.?"], int8="*.9")
    )
    refused("min_bytes=0 is not allowed", lambda: offload(model, ["*"], min_bytes=0))
    refused("set SPILLWAY_CONF=spill_dir", lambda: offload(model, ["*"], to="disk"))
    train(outcome, model, 1, 4)


offload = spillway.offload_activations

PROGRAMS: list[Program] = [
    bytes_come_back,
    on_disk(functools.partial(bytes_come_back, to="disk")),
    memory_is_lower_between,
    functools.partial(checkpointed, reentrant=True),
    functools.partial(checkpointed, reentrant=False),
    checkpoint_around_a_target,
    graph_is_kept,
    same_layer_twice,
    exception_in_the_middle,
    interrupted_in_the_middle,
    lazy_layers,
    changed_in_place,
    saved_before_and_after_a_change,
    input_that_every_step_overwrites,
    no_room_keeps_it_here,
    under_capture_all_stays,
    micro_batches,
    other_streams,
    layers_on_streams_in_turn,
    transformer,
    eight_bits_move_less,
    a_storage_that_the_program_gave_up,
    eight_bits_are_planned_for_what_stays,
    eight_bits_are_for_those_who_ask,
    mistakes_are_one_sentence,
]


OnEverySeed = every_seed(PROGRAMS)

if __name__ == "__main__":
    unittest.main()
