"""Gradients that leave the device with their layer: their bits on the host, their bytes on the simulated device."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import pickle
import unittest
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import spillway
from moving_test import COUNT, WIDTH, Model, backward, batch
from on_seeds import Outcome, Program, check_counters, run, torch
from spilling import DEVICE, configure, every_seed, on_disk
from spillway._offload import gradients as _gradients
from spillway._offload import parameters as _parameters
from spillway._offload import stashes

WEIGHT_BYTES = 4 * WIDTH * WIDTH
KEPT = 2  # of the layers, with keep=0.3
STEPS = 3


def weights(model: Any) -> list[Any]:
    return [block.linear.weight for block in model.blocks]


def away(model: Any) -> list[bool]:
    """Of each layer, whether its weight's gradient has no memory on the device."""
    return [isinstance(each.grad, _gradients.stand_in()) and each.grad.here is None for each in weights(model)]


class Marked:
    """Each accumulation of a weight's gradient finds the bytes that the one before wrote, and writes others.

    The simulated kernels write nothing, so what is there is what came back.
    """

    def __init__(self, model: Any) -> None:
        self.damaged = 0
        self.values: dict[int, int] = {}
        self.most_here = 0
        for number, weight in enumerate(weights(model)):

            def note(parameter: Any, number: int = number) -> None:
                value = self.values.get(number)
                if value is not None:
                    self.damaged += int((parameter.grad.cpu() != value).any())
                self.values[number] = (value or 100 * number) + 1
                with torch.no_grad():
                    parameter.grad.fill_(self.values[number])
                here = [
                    not is_away
                    for is_away, each in zip(away(model), weights(model), strict=True)
                    if each.grad is not None
                ]
                self.most_here = max(self.most_here, sum(here[KEPT:]))

            weight.register_post_accumulate_grad_hook(note)

    def check(self, model: Any) -> int:
        """How many gradients are not what the last accumulation wrote."""
        found = [(weights(model)[number].grad, value) for number, value in self.values.items()]
        return self.damaged + sum(int((gradient.cpu() != value).any()) for gradient, value in found)


def they_leave_and_are_added_to(outcome: Outcome, checkpointed: bool, to: str = "host") -> None:
    model = Model(checkpointed).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = spillway.offload_parameters(model, 0.3, optimizer=optimizer, to=to)
    for set_to_none in (True, False, True):
        marked = Marked(model)
        for _ in range(3):
            backward(model)
            # The first that moves has nobody after it to leave for.
            assert away(model) == [False] * (KEPT + 1) + [True] * (COUNT - KEPT - 1), away(model)
        model(batch())
        assert away(model)[KEPT:] == [True] * (COUNT - KEPT), away(model)
        with torch.no_grad():
            model(batch())
        assert marked.most_here <= 2, marked.most_here
        seen: list[list[bool]] = []
        hook = optimizer.register_step_pre_hook(lambda *_, seen=seen: seen.append(away(model)))
        optimizer.step()
        hook.remove()
        assert seen == [[False] * COUNT] and not any(away(model)), seen
        outcome.damaged += marked.check(model)
        optimizer.zero_grad(set_to_none=set_to_none)
        for weight in weights(model):
            weight._post_accumulate_grad_hooks.clear()
        check_counters()
    backward(model)
    handle.remove()
    assert not any(away(model)) and all(type(each.grad) is torch.Tensor for each in weights(model))
    assert spillway.tier_stats()["stashes"] == 0, spillway.tier_stats()


def whoever_uses_one_has_it(outcome: Outcome) -> None:
    """cudf#18088: who used what might be elsewhere without a lock on it got an error."""
    model = Model().cuda()
    spillway.offload_parameters(model, 0.3)

    def again() -> None:
        for weight in weights(model):
            weight.grad = torch.full_like(weight, 7)
        model(batch())
        assert sum(away(model)) == COUNT - KEPT

    def is_seven(gradient: Any) -> bool:
        return bool((gradient.cpu() == 7).all())

    model.requires_grad_(False)
    for weight in weights(model):
        weight.requires_grad_(True)
    last = weights(model)[-1]
    uses: list[Any] = [
        lambda: last.grad,
        lambda: last.grad.clone(),
        lambda: last.grad.detach(),
        lambda: last.grad[:],
        lambda: torch.tensor(last.grad[0].tolist()),
        lambda: pickle.loads(pickle.dumps(last.grad)),
        lambda: torch._foreach_mul([last.grad, weights(model)[0].grad], 1)[0].fill_(7),
    ]
    for use in uses:
        again()
        assert last.grad.shape == last.shape and last.grad.device == last.device and away(model)[-1]
        outcome.damaged += not is_seven(use())
    again()
    assert last.grad.data_ptr() != 0 and not away(model)[-1]
    # Changed in place it is changed, and leaves again.
    again()
    with torch.no_grad():
        last.grad.fill_(9)
    model(batch())
    assert away(model)[-1]
    outcome.damaged += int((last.grad.cpu() != 9).any())
    # So it is where other numbers take the place of its own.
    again()
    last.grad.data = torch.full_like(last, 8)
    outcome.damaged += int((last.grad.cpu() != 8).any())
    model(batch())
    assert away(model)[-1]
    outcome.damaged += int((last.grad.cpu() != 8).any())
    # What is looked at through another tensor stays, for as long as it is.
    for weight in weights(model):
        weight.grad = torch.full_like(weight, 7)
    other = last.grad.view(-1)
    model(batch())
    assert sum(away(model)) == COUNT - KEPT - 1 and not away(model)[-1]
    assert last.grad.data_ptr() == other.data_ptr()
    del other
    model(batch())
    assert away(model)[-1]
    scaler = torch.amp.GradScaler()
    scaler.scale(batch())
    uses = [
        lambda: torch.nn.utils.clip_grad_norm_(weights(model), 1.0),
        lambda: scaler.unscale_(torch.optim.SGD(weights(model), lr=0.1)),
        lambda: torch.optim.SGD(weights(model), lr=0.1).zero_grad(set_to_none=False),
    ]
    for use_all in uses:
        again()
        use_all()
        assert not any(away(model))
    # What is dropped is given up.
    again()
    model.zero_grad()
    assert spillway.tier_stats()["stashes"] == 0, spillway.tier_stats()
    backward(model)


def no_gradient_is_no_care(outcome: Outcome) -> None:
    """Frozen layers, those that are taken by hooks as they come, and small ones."""
    model = Model().cuda()
    for parameter in model.blocks[3].parameters():
        parameter.requires_grad_(False)
    taken: list[int] = []

    def take(parameter: Any) -> None:
        taken.append(parameter.grad.numel())
        parameter.grad = None

    handle = spillway.offload_parameters(model, 0)
    model.blocks[4].linear.weight.register_post_accumulate_grad_hook(take)
    for _ in range(STEPS):
        backward(model)
    assert away(model) == [False, True, True, False, False, True], away(model)
    assert type(model.blocks[5].linear.bias.grad) is torch.Tensor and len(taken) == STEPS
    puts = spillway.tier_stats()["stash_puts"]
    handle.remove()
    handle = spillway.offload_parameters(model, 0, gradients=False)
    backward(model)
    assert not any(away(model)) and spillway.tier_stats()["stash_puts"] == puts
    # Inside, nothing leaves.
    handle.remove()
    handle = spillway.offload_parameters(model, 0)
    with handle.resident():
        backward(model)
        assert not any(away(model))
        assert all(row["device_bytes"] > 0 for row in spillway.regions().values())
    handle.remove()


def a_pass_that_fails(outcome: Outcome) -> None:
    model = Model().cuda()
    handle = spillway.offload_parameters(model, 0.3)
    marked = Marked(model)
    backward(model)
    hook = model.blocks[3].register_full_backward_hook(lambda *_: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        backward(model)
    hook.remove()
    backward(model)
    with handle.resident():
        outcome.damaged += marked.check(model)
    model.zero_grad()
    marked.values.clear()
    backward(model)
    outcome.damaged += marked.check(model)


def no_room_elsewhere(outcome: Outcome) -> None:
    model = Model().cuda()
    handle = spillway.offload_parameters(model, 0.3)
    with handle.resident():
        marked = Marked(model)
        backward(model)
        configure("pinned_limit:1MiB")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            with contextlib.suppress(spillway.SpillwayError):
                backward(model)
    texts = [str(each.message) for each in caught if "gradients of" in str(each.message)]
    assert len(texts) == len(set(texts)) > 0, texts
    outcome.damaged += marked.check(model)


def peak_bytes(outcome: Outcome) -> None:
    """Of the second of two passes, when there are gradients: all are spared, but those of few layers."""
    most = {}
    for gradients in (False, True):
        model = Model().cuda()
        handle = spillway.offload_parameters(model, 0.0, gradients=gradients)
        backward(model)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        backward(model)
        most[gradients] = torch.cuda.max_memory_allocated()
        handle.remove()
        del model
    assert most[False] - most[True] >= (COUNT - 3) * WEIGHT_BYTES, most


class Beside(torch.nn.Module):  # type: ignore[misc]
    """A layer that works on another stream."""

    def __init__(self, layer: Any, stream: Any) -> None:
        super().__init__()
        self.linear = layer.linear
        self.layer = layer
        self.stream = stream

    def forward(self, x: Any) -> Any:
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            x.record_stream(self.stream)
            x = self.layer(x)
        here.wait_stream(self.stream)
        x.record_stream(here)
        return x


def several_streams(outcome: Outcome) -> None:
    """A gradient is accumulated on the stream of its layer, and leaves when a layer on another begins."""
    model = Model().cuda()
    stream = torch.cuda.Stream()
    for number in range(1, COUNT, 2):
        model.blocks[number] = Beside(model.blocks[number], stream)
    handle = spillway.offload_parameters(model, 0)
    marked = Marked(model)
    for _ in range(STEPS):
        backward(model)
    with handle.resident():
        outcome.damaged += marked.check(model)


class Still:
    """MovingTensors of the host."""

    def __init__(self, tag: str, to: str) -> None:
        self.tag, self.is_out = tag, False
        self._held: set[int] = set()

    def adopt(self, tensors: Any) -> None:
        self._held = {id(each) for each in tensors}

    def holds(self, tensor: Any) -> bool:
        return id(tensor) in self._held

    def evict(self) -> None: ...
    def bring(self) -> None: ...
    def prefetch(self) -> None: ...
    def release(self) -> None: ...


class Copy:
    """A stash of the host."""

    count = 0

    def __init__(self, tensor: Any) -> None:
        self._copy = tensor.untyped_storage().clone()
        tensor.fill_(torch.nan)  # who used it still would see
        Copy.count += 1
        self.is_coming = False

    def begin_get(self) -> None:
        self.is_coming = True

    def finish_get(self) -> Any:
        self.is_coming = False
        return self._copy.clone()


@contextlib.contextmanager
def on_the_host() -> Iterator[None]:
    with (
        mock.patch.object(_parameters, "MovingTensors", Still),
        mock.patch.object(_parameters, "refuse_capture", lambda *_: None),
        mock.patch.object(_gradients, "LEAST_BYTES", 1),
        mock.patch.object(stashes, "put", lambda tensor, to: Copy(tensor)),
    ):
        yield


def train(offloaded: bool, set_to_none: bool, scaled: bool, inside: bool) -> list[Any]:
    """Losses, norms of the gradients and the weights at the end."""
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(COUNT)]
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), *blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    handle: Any = _parameters.ParameterOffload("host")
    if offloaded:
        handle.attach(model, blocks[1:], optimizer, True)
    seen = []
    for _ in range(5):
        for _ in range(3):
            loss = model(torch.randn(4, 16)).square().mean()
            scaler.scale(loss).backward()
            seen.append(loss.detach())
        with handle.resident() if inside else contextlib.nullcontext():
            scaler.unscale_(optimizer)
            seen.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none)
    return [*seen, *(each.detach() for each in model.parameters())]


def same_bits(outcome: Outcome) -> None:
    """Kernels compute on the host alone, so the numbers are compared there: the hooks are the same."""
    for flags in itertools.product((True, False), repeat=3):
        expected = train(False, *flags)
        before = Copy.count
        with on_the_host():
            found = train(True, *flags)
        assert Copy.count > before + 5 * 3 * COUNT
        outcome.damaged += sum(not torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def whoever_looks_has_it(outcome: Outcome) -> None:
    def fresh() -> Any:
        gradient = torch.full((4, 4), 7.0)
        return _gradients.stand_in()(gradient, stashes.put(gradient, 0))

    with on_the_host():
        for look in (copy.deepcopy, torch.from_dlpack, lambda each: each.data, lambda each: each.numpy()):
            outcome.damaged += not torch.equal(torch.as_tensor(look(fresh())), torch.full((4, 4), 7.0))
        assert "7." in repr(fresh())
        replaced = fresh()
        replaced.data = torch.full((4, 4), 9.0)
        outcome.damaged += int((replaced.clone() != 9).any())


def what_others_look_at_stays(_: Outcome) -> None:
    """As gradients that are views of a bucket of DistributedDataParallel's."""
    with on_the_host():
        bucket = torch.ones(8)
        assert _gradients.may_leave(torch.ones(8)) and not _gradients.may_leave(bucket.view(8))
        parameter = torch.nn.Parameter(torch.ones(8))
        parameter.square().sum().backward()
        assert _gradients.may_leave(parameter.grad)


def buckets(outcome: Outcome) -> None:
    """DistributedDataParallel keeps gradients as views of its buckets, of which some are of one gradient alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)

    def train_parallel(offloaded: bool) -> list[Any]:
        torch.manual_seed(0)
        blocks = [torch.nn.Linear(16, 16, bias=False) for _ in range(COUNT)]
        model = torch.nn.Sequential(*blocks)
        parallel = torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True, bucket_cap_mb=4 * 16 * 16 / (1 << 20)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        handle: Any = _parameters.ParameterOffload("host")
        if offloaded:
            handle.attach(model, blocks, optimizer, True)
        for _ in range(5):
            for _ in range(2):
                parallel(torch.randn(4, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [each.detach() for each in model.parameters()]

    expected = train_parallel(False)
    with on_the_host():
        found = train_parallel(True)
    outcome.damaged += sum(not torch.equal(one, other) for one, other in zip(expected, found, strict=True))


class Bits(unittest.TestCase):
    def test_losses_norms_and_weights_are_those_without(self) -> None:
        for program in (same_bits, whoever_looks_has_it, what_others_look_at_stays, buckets):
            with self.subTest(program.__name__):
                outcome = run(program, "spillway", 0, DEVICE)
                self.assertFalse(outcome.failure, outcome.failure)
                self.assertEqual(outcome.damaged, 0)


PROGRAMS: list[Program] = [
    functools.partial(they_leave_and_are_added_to, checkpointed=False),
    functools.partial(they_leave_and_are_added_to, checkpointed=True),
    on_disk(functools.partial(they_leave_and_are_added_to, checkpointed=False, to="disk")),
    whoever_uses_one_has_it,
    no_gradient_is_no_care,
    a_pass_that_fails,
    no_room_elsewhere,
    peak_bytes,
    several_streams,
]

OnEverySeed = every_seed(PROGRAMS)

if __name__ == "__main__":
    unittest.main()
