"""An optimizer's state that is on the device for the step alone."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .._pytorch.annotate import tensors
from .._pytorch.install import import_torch
from .compiled import outside_graphs
from .moving import MovingTensors, disown, own, owned, refuse_capture, unique_tag, weakly
from .tiers import index_of, serves


def offload_optimizer(optimizer: Any, *, to: str = "host", tag: str | None = None) -> OptimizerOffload:
    """Keeps the state of a torch.optim optimizer in host memory or on the disk between its steps.

    The state moves into a region as it is created, and keeps its addresses from then on. It is brought back before a
    step, from when the first of the optimizer's parameters that is not frozen has its last gradient, and evicted after,
    which waits for the device; so it is where that step is skipped (GradScaler), when the next forward pass of any
    module begins on the thread that steps, outside of compiled functions. state_dict() brings it back, until the next
    step has ended. Otherwise, between steps, nobody may use it but inside resident().

    `to`: "host" or "disk". `tag`: the region's, one of its own unless told. An earlier call for this optimizer ends, as
    by its remove(). Errors: SpillwayError, torch.OutOfMemoryError, and the optimizer is as it was.
    """
    handle = OptimizerOffload(optimizer, tag or unique_tag("optimizer"), to)
    if serves("offload_optimizer()"):
        for earlier in owned(optimizer, OptimizerOffload):
            earlier.remove()
        try:
            handle.attach()
        except BaseException:
            handle.remove()
            raise
    return handle


class OptimizerOffload:
    """What offload_optimizer() returns. Of one thread at a time, as the optimizer."""

    def __init__(self, optimizer: Any, tag: str, to: str) -> None:
        self.tag = tag
        self._optimizer = weakref.ref(optimizer)  # which has the handle
        self._moving = MovingTensors(tag, to)
        self._removers: list[Any] = []
        self._first: Any = None  # the parameter whose gradient comes last
        # How often that was accumulated since there was none, or the last step, and before that.
        self._accumulated = 0
        self._wanted = 0
        self._residents = 0  # how many resident() are open
        self._stop_watching: Any = None  # while the state is on its way to a step
        self._stepping: Any = None  # the process and the thread that made the last step

    def attach(self) -> None:
        optimizer = self._optimizer()
        assert optimizer is not None
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index in {parameter.device.index for parameter in parameters if parameter.is_cuda}:
            index_of(index)
        hooks = [
            optimizer.register_step_pre_hook(weakly(self._before_step)),
            optimizer.register_step_post_hook(weakly(self._send)),
            optimizer.register_state_dict_pre_hook(weakly(self._bring)),
            optimizer.register_load_state_dict_post_hook(weakly(self._send)),
        ]
        self._removers = [hook.remove for hook in hooks]
        own(optimizer, self)
        # The first layer's gradients are the last. A frozen parameter has none.
        for self._first in [parameter for parameter in parameters if parameter.requires_grad][:1]:
            self._removers.append(self._first.register_hook(outside_graphs(weakly(self._before_gradient))).remove)
            note = outside_graphs(weakly(self._note_gradient))
            self._removers.append(self._first.register_post_accumulate_grad_hook(note).remove)
        if optimizer.state:
            self._send()

    def remove(self) -> None:
        """The state comes back and stays. Again is ok. Errors: SpillwayError."""
        self._moving.release()
        self._unwatch_forward()
        for remove in self._removers:
            remove()
        self._removers = []
        disown(self._optimizer(), self)

    @contextmanager
    def resident(self) -> Iterator[None]:
        """Inside, the state is on the device. Errors: SpillwayError."""
        was_out = self._moving.is_out
        self._moving.bring()
        self._residents += 1
        try:
            yield
        finally:
            self._residents -= 1
            if was_out:
                self._moving.evict()

    def _before_gradient(self, _: Any) -> None:
        if self._first.grad is None:
            self._accumulated = 0  # what there was is gone without a step

    def _note_gradient(self, _: Any) -> None:
        self._accumulated += 1
        if self._accumulated != self._wanted or not self._moving.is_out:
            return
        if not import_torch().cuda.is_current_stream_capturing():
            self._moving.prefetch()
            self._watch_forward()

    def _watch_forward(self) -> None:
        """Before a step there is none. If there is one the step is skipped, or comes after another backward pass."""
        torch = import_torch()
        leave = outside_graphs(weakly(self._leave))
        stepping = self._stepping

        def begin(*_: Any) -> None:
            # A function that is compiled as a whole cannot do it. Modules run in workers and on other threads too.
            if not torch.compiler.is_compiling() and stepping == _here():
                leave()

        self._unwatch_forward()
        self._stop_watching = torch.nn.modules.module.register_module_forward_pre_hook(begin).remove

    def _leave(self) -> None:
        torch = import_torch()
        # A checkpoint runs a layer again in the backward pass.
        if self._residents == 0 and torch._C._current_graph_task_id() == -1:
            self._unwatch_forward()
            if not torch.cuda.is_current_stream_capturing():
                self._moving.evict()

    def _unwatch_forward(self) -> None:
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    def _before_step(self, *_: Any) -> None:
        refuse_capture(import_torch(), "offload_optimizer()")
        self._wanted, self._accumulated = self._accumulated, 0
        self._stepping = _here()
        self._bring()

    def _bring(self, *_: Any) -> None:
        self._unwatch_forward()
        self._moving.bring()

    def _send(self, *_: Any) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            self._moving.adopt(tensors(import_torch(), list(optimizer.state.values())))
        if not self._moving.is_out:
            self._moving.evict()


def _here() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()
