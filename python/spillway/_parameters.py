"""Parameters of layers that are on the device while their layer runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from . import _install
from ._annotate import tensors
from ._errors import SpillwayError
from ._moving import MovingTensors, refuse_capture, unique_tag
from ._tiers import index_of, serves


def offload_parameters(
    model: Any, keep: float = 0.3, *, layers: Sequence[Any] | None = None, optimizer: Any = None, to: str = "host"
) -> ParameterOffload:
    """Keeps the parameters and buffers of a model's later layers in host memory or on the disk while others run.

    `layers`: modules that run one after the other; without it, those of the model's largest torch.nn.ModuleList. The
    first `keep` of them (0 to 1) stay on the device. Each other is a region: brought back before its forward and its
    backward pass, with the next one behind it, and evicted when the one after begins, which waits for the device.
    Addresses are kept, gradients stay on the device. Memory that is used outside of its layer stays too.

    An optimizer needs all parameters: `optimizer` has them brought back around its step. state_dict() brings them back
    as well. Otherwise nobody may use them outside of their layer but inside resident(). Errors: SpillwayError,
    torch.OutOfMemoryError, and all parameters are on the device.
    """
    if not 0 <= keep <= 1:
        raise SpillwayError(f"keep={keep} is not allowed; allowed: 0 to 1")
    chosen = list(layers) if layers is not None else largest_list(model)
    handle = ParameterOffload(to)
    if serves("offload_parameters()"):
        try:
            handle.attach(model, chosen[round(keep * len(chosen)) :], optimizer)
        except BaseException:
            handle.remove()
            raise
    return handle


def largest_list(model: Any) -> list[Any]:
    """Errors: SpillwayError, when there is none."""
    torch = _install.import_torch()
    lists: list[Any] = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    if not lists:
        raise SpillwayError("the model has no torch.nn.ModuleList: name its layers, as in layers=[model.a, model.b]")
    largest: Any = max(lists, key=lambda each: sum(parameter.nbytes for parameter in each.parameters()))
    return list(largest)


class ParameterOffload:
    """What offload_parameters() returns. Forward and backward passes of one at a time."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._layers: list[MovingTensors] = []
        self._removers: list[Any] = []

    @property
    def tags(self) -> list[str]:
        """Of the layers' regions, in order."""
        return [layer.tag for layer in self._layers]

    def attach(self, model: Any, modules: Sequence[Any], optimizer: Any) -> None:
        torch = _install.import_torch()
        held = [own_tensors(torch, module) for module in modules]
        everywhere = Counter(
            tensor.untyped_storage()._cdata for module in model.modules() for tensor in direct_tensors(torch, module)
        )
        for mine in held:
            layer = MovingTensors(unique_tag("layer"), self._to)
            self._layers.append(layer)
            for index in {tensor.device.index for tensor in mine if tensor.is_cuda}:
                index_of(index)
            layer.adopt(tensor for tensor in mine if everywhere[tensor.untyped_storage()._cdata] == 1)
            layer.evict()
        for number, module in enumerate(modules):
            self._watch(number, module)
        hooks = [
            model.register_forward_pre_hook(lambda *_: self._begin_forward()),
            model.register_state_dict_pre_hook(lambda *_: self._bring_all()),
            model.register_load_state_dict_pre_hook(lambda *_: self._bring_all()),
        ]
        if optimizer is not None:
            hooks.append(optimizer.register_step_pre_hook(lambda *_: self._bring_all()))
            hooks.append(optimizer.register_step_post_hook(lambda *_: self._leave_only(())))
        self._removers += [hook.remove for hook in hooks]

    def remove(self) -> None:
        """All parameters come back and stay. Again is ok. Errors: SpillwayError."""
        for layer in self._layers:
            layer.release()
        for remove in self._removers:
            remove()
        self._layers, self._removers = [], []

    @contextmanager
    def resident(self) -> Iterator[None]:
        """Inside, all parameters are on the device. Errors: SpillwayError."""
        self._bring_all()
        try:
            yield
        finally:
            self._leave_only(())

    def _watch(self, number: int, module: Any) -> None:
        torch = _install.import_torch()

        def before(*_: Any) -> None:
            # A checkpoint runs a layer again in the backward pass.
            self._enter(number, torch._C._current_graph_task_id() != -1)

        def after(_: Any, __: Any, output: Any) -> None:
            if torch.is_grad_enabled():
                for tensor in tensors(torch, output):
                    if tensor.requires_grad:
                        tensor.register_hook(lambda _: self._enter(number, True))

        self._removers.append(module.register_forward_pre_hook(before, prepend=True).remove)
        self._removers.append(module.register_forward_hook(after).remove)

    def _begin_forward(self) -> None:
        refuse_capture(_install.import_torch(), "offload_parameters()")
        for layer in self._layers[:1]:
            layer.prefetch()

    def _enter(self, number: int, is_backward: bool) -> None:
        if number >= len(self._layers):
            return  # removed since
        torch = _install.import_torch()
        refuse_capture(torch, "offload_parameters()")
        following = self._after(number, is_backward, torch.is_grad_enabled())
        self._leave_only((number, following))
        try:
            self._layers[number].bring()
        except SpillwayError:
            # There was no room while it was fetched ahead; there may be now.
            self._leave_only((number,))
            self._layers[number].bring()
        if following is not None:
            self._layers[following].prefetch()

    def _after(self, number: int, is_backward: bool, has_backward: bool) -> int | None:
        if is_backward:
            return number - 1 if number > 0 else None
        if number + 1 < len(self._layers):
            return number + 1
        return max(number - 1, 0) if has_backward else 0

    def _leave_only(self, numbers: Sequence[int | None]) -> None:
        for number, layer in enumerate(self._layers):
            if number not in numbers and not layer.is_out:
                layer.evict()

    def _bring_all(self) -> None:
        for layer in self._layers:
            layer.bring()


def direct_tensors(torch: Any, module: Any) -> Iterator[Any]:
    """Parameters and buffers of the module itself, once each."""
    found = [*module._parameters.values(), *module._buffers.values()]
    yield from tensors(torch, list({id(each): each for each in found if each is not None}.values()))


def own_tensors(torch: Any, module: Any) -> list[Any]:
    """Those of the module and all in it, once each."""
    found = tensors(torch, [*module.parameters(), *module.buffers()])
    return list({id(each): each for each in found}.values())
