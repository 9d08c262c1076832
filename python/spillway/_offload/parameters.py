"""Parameters of layers that are on the device while their layer runs."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .._errors import SpillwayError, SpillwayWarning
from .._pytorch.annotate import outer_tensors, tensors
from .._pytorch.install import import_torch
from .compiled import forget_compiled, outside_graphs
from .gradients import LayerGradients
from .moving import MovingTensors, disown, end_earlier, own, refuse_capture, unique_tag, weakly
from .tiers import index_of, serves

# A region is made of pages, and Spillway serves up to the second size from slabs (small_limit).
PAGE_BYTES = 2 << 20
SMALL_BYTES = 16 << 10

_everyone: weakref.WeakSet[ParameterOffload] = weakref.WeakSet()


def offload_parameters(
    model: Any,
    keep: float = 0.3,
    *,
    layers: Sequence[Any] | None = None,
    optimizer: Any = None,
    to: str = "host",
    gradients: bool = True,
) -> ParameterOffload:
    """Keeps what a model's later layers hold in host memory or on the disk while others run: parameters, buffers and,
    with `gradients`, gradients.

    `layers`: modules that run one after the other, each once; without it, those of the model's largest
    torch.nn.ModuleList. The first `keep` of them (0 to 1) stay on the device. Each other is a region: brought back
    before its forward and its backward pass, with the next one behind it, and evicted when the one after begins, which
    waits for the device. Addresses are kept. Tensors of 16 KiB and less stay where others fill pages. Memory that is
    used outside of its layer stays. So does, with a warning, a layer that returns no tensor in lists, mappings or
    dataclasses, and one that a backward pass with create_graph=True goes through.

    Gradients leave with their layer in the backward pass, those that are on the device when a forward pass begins that
    may have another at once, and come back before more is added to them. Whoever uses one that is away has it brought
    back: `.grad` may be read and changed at any time, in resident() it is as without offload. Addresses of gradients
    are not kept. Where there is no room for one elsewhere, it stays.

    An optimizer needs it all: `optimizer` has everything brought back around its step. state_dict() brings parameters
    back as well, and so does whoever uses one outside of its layer, with its layer alone. What he keeps of it, as a
    view, may be used inside resident() only. An earlier call for one of these layers ends, as by its remove(). Errors:
    SpillwayError, torch.OutOfMemoryError, and all parameters are on the device.
    """
    if not 0 <= keep <= 1:
        raise SpillwayError(f"keep={keep} is not allowed; allowed: 0 to 1")
    chosen = chosen_layers(model, layers)
    handle = ParameterOffload(to)
    if serves("offload_parameters()"):
        end_earlier(_everyone, chosen)
        try:
            handle.attach(model, chosen[round(keep * len(chosen)) :], optimizer, gradients)
            _everyone.add(handle)
        except BaseException:
            handle.remove()
            raise
    return handle


def chosen_layers(model: Any, layers: Sequence[Any] | None) -> list[Any]:
    """Each once. Errors: SpillwayError, for one that is in another."""
    chosen = list(dict.fromkeys(layers if layers is not None else largest_list(model)))
    among = set(chosen)
    names = {module: name for name, module in model.named_modules()}
    for outer in chosen:
        for inner in outer.modules():
            if inner is not outer and inner in among:
                name, its = names.get(inner, "?"), names.get(outer, "?")
                raise SpillwayError(f"layers= has '{name}', which is in '{its}': name the one or the other")
    return chosen


def largest_list(model: Any) -> list[Any]:
    """Errors: SpillwayError, when there is none."""
    torch = import_torch()
    lists: list[Any] = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    if not lists:
        raise SpillwayError("the model has no torch.nn.ModuleList: name its layers, as in layers=[model.a, model.b]")
    largest: Any = max(lists, key=lambda each: sum(parameter.nbytes for parameter in each.parameters()))
    return list(largest)


def worth_moving(tensors: Sequence[Any]) -> list[Any]:
    """Without biases and norms, where others fill whole pages: those few bytes would take one more of each layer."""
    large = [tensor for tensor in tensors if tensor.nbytes > SMALL_BYTES]
    return large if sum(tensor.nbytes for tensor in large) >= PAGE_BYTES else list(tensors)


class ParameterOffload:
    """What offload_parameters() returns. Forward and backward passes of one at a time."""

    def __init__(self, to: str) -> None:
        self._to = to
        # Each layer has some. They hold parameters, and so go before what moves those.
        self._gradients: list[LayerGradients] = []
        self._layers: list[MovingTensors] = []
        self.modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizer: Callable[[], Any] = lambda: None
        self._accumulated: set[int] = set()  # layers whose gradients may be on the device
        self._residents = 0  # how many resident() are open
        self._staying: dict[int, str] = {}  # layers that no longer leave, and why
        self._removers: list[Any] = []

    @property
    def tags(self) -> list[str]:
        """Of the layers' regions, in order."""
        return [layer.tag for layer in self._layers]

    def attach(self, model: Any, modules: Sequence[Any], optimizer: Any, gradients: bool) -> None:
        torch = import_torch()
        self.modules.update(modules)
        held = [own_tensors(torch, module) for module in modules]
        everywhere = Counter(
            tensor.untyped_storage()._cdata for module in model.modules() for tensor in direct_tensors(torch, module)
        )
        for mine in held:
            layer = MovingTensors(unique_tag("layer"), self._to)
            self._layers.append(layer)
            for index in {tensor.device.index for tensor in mine if tensor.is_cuda}:
                index_of(index)
            layer.adopt(worth_moving([each for each in mine if everywhere[each.untyped_storage()._cdata] == 1]))
            layer.evict()
        for layer, module in zip(self._layers, modules, strict=True):
            moved = [each for each in module.parameters() if layer.holds(each)] if gradients else []
            self._gradients.append(LayerGradients(layer.tag, self._to, moved))
        forget_compiled()
        for number, module in enumerate(modules):
            self._watch(number, module)
        hooks = [
            model.register_forward_pre_hook(outside_graphs(lambda *_: self._begin_forward())),
            model.register_state_dict_pre_hook(lambda *_: self._bring_all()),
            model.register_load_state_dict_pre_hook(lambda *_: self._bring_all()),
        ]
        if optimizer is not None:
            hooks.append(optimizer.register_step_pre_hook(outside_graphs(weakly(self._gather))))
            hooks.append(optimizer.register_step_post_hook(outside_graphs(weakly(self._leave))))
            self._optimizer = weakref.ref(optimizer)
            own(optimizer, self)
        self._removers += [hook.remove for hook in hooks]

    def remove(self) -> None:
        """Everything comes back and stays. Again is ok. Errors: SpillwayError, torch.OutOfMemoryError."""
        for each in self._gradients:
            each.release()
        for layer in self._layers:
            layer.release()
        for remove in self._removers:
            remove()
        self._layers, self._gradients, self._removers = [], [], []
        disown(self._optimizer(), self)

    @contextmanager
    def resident(self) -> Iterator[None]:
        """Inside, everything is on the device. Errors: SpillwayError, torch.OutOfMemoryError."""
        self._gather()
        self._residents += 1
        try:
            yield
        finally:
            self._residents -= 1
            self._leave_only(())

    def _watch(self, number: int, module: Any) -> None:
        torch = import_torch()

        def is_own(tensor: Any) -> bool:
            """Whether what made it is not another layer's, of which the layer passes it on."""
            return bool(tensor.grad_fn.metadata.setdefault(self, number) == number)

        @outside_graphs
        def before(_: Any, *given: Any) -> None:
            for tensor in outer_tensors(torch, given):
                if tensor.grad_fn is not None:
                    tensor.grad_fn.metadata.setdefault(self, None)
            # A checkpoint runs a layer again in the backward pass.
            self._enter(number, torch._C._current_graph_task_id() != -1)

        @outside_graphs
        def before_backward(_: Any) -> None:
            self._enter(number, True)
            if torch.is_grad_enabled():
                self._stay(number, "gradients of gradients may read them at any time (create_graph=True)")

        @outside_graphs
        def after(layer: Any, _: Any, output: Any) -> None:
            found = list(outer_tensors(torch, output))
            # The hook runs before what made the tensor goes backward, so that it is the maker's alone.
            computed = [tensor for tensor in found if tensor.grad_fn is not None and is_own(tensor)]
            for tensor in computed:
                tensor.register_hook(before_backward)
            if computed or not torch.is_grad_enabled():
                return
            if not found or any(parameter.requires_grad for parameter in layer.parameters()):
                self._stay(number, f"what they return ({type(output).__name__}) has no tensor to go backward from")

        self._removers.append(module.register_forward_pre_hook(before, prepend=True, with_kwargs=True).remove)
        self._removers.append(module.register_forward_hook(after).remove)

    def _begin_forward(self) -> None:
        torch = import_torch()
        refuse_capture(torch, "offload_parameters()")
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            # Others than the backward pass may have made some.
            self._accumulated.update(range(len(self._layers)))
            self._send_gradients(())
        for layer in self._layers[:1]:
            layer.prefetch()

    def _enter(self, number: int, is_backward: bool) -> None:
        if number >= len(self._layers):
            return  # removed since
        torch = import_torch()
        refuse_capture(torch, "offload_parameters()")
        following = self._after(number, is_backward, torch.is_grad_enabled())
        if is_backward:
            self._send_gradients((number, following))
        self._leave_only((number, following))
        try:
            self._bring(number, is_backward)
        except (SpillwayError, torch.OutOfMemoryError):
            # There was no room while it was fetched ahead; there may be now.
            self._leave_only((number,))
            self._bring(number, is_backward)
        if following is not None:
            self._layers[following].prefetch()
            if is_backward:
                self._gradients[following].prefetch()

    def _bring(self, number: int, is_backward: bool) -> None:
        self._layers[number].bring()
        if is_backward:
            self._accumulated.add(number)
            self._gradients[number].bring()

    def _after(self, number: int, is_backward: bool, has_backward: bool) -> int | None:
        if is_backward:
            return number - 1 if number > 0 else None
        if number + 1 < len(self._layers):
            return number + 1
        return max(number - 1, 0) if has_backward else 0

    def _leave_only(self, numbers: Collection[int | None]) -> None:
        for number, layer in enumerate(self._layers) if self._residents == 0 else ():
            if number not in numbers and number not in self._staying and not layer.is_out:
                layer.evict()

    def _stay(self, number: int, why: str) -> None:
        """From here on, since nobody says when it is used. A warning says so once."""
        if number >= len(self._layers) or number in self._staying:
            return
        self._layers[number].bring()
        is_said = why in self._staying.values()
        self._staying[number] = why
        if not is_said:
            warnings.warn(f"parameters of layers stay on the device: {why}", SpillwayWarning, stacklevel=2)

    def _send_gradients(self, but: Collection[int | None]) -> None:
        for number in sorted(self._accumulated.difference(but)) if self._residents == 0 else ():
            self._gradients[number].send()
            self._accumulated.discard(number)

    def _bring_all(self) -> None:
        for layer in self._layers:
            layer.bring()

    def _leave(self, *_: Any) -> None:
        self._leave_only(())

    def _gather(self, *_: Any) -> None:
        self._accumulated.update(range(len(self._layers)))
        for each in self._gradients:
            each.prefetch()
        self._bring_all()
        for each in self._gradients:
            each.bring()


def direct_tensors(torch: Any, module: Any) -> Iterator[Any]:
    """Parameters and buffers of the module itself, once each."""
    found = [*module._parameters.values(), *module._buffers.values()]
    yield from tensors(torch, list({id(each): each for each in found if each is not None}.values()))


def own_tensors(torch: Any, module: Any) -> list[Any]:
    """Those of the module and all in it, once each."""
    found = tensors(torch, [*module.parameters(), *module.buffers()])
    return list({id(each): each for each in found}.values())
