"""What PyTorch asks cuDNN for on the simulated device, which has none.

PyTorch's own convolutions write columns of the input, or go through the samples one by one, for minutes where patches
are samples. cuDNN does neither. Here they make their results, and what cuDNN has copied into another order meanwhile;
not known is the workspace of the algorithm that it would choose. Values that are real are computed on the host as
those of other operators are.

Attention that a program asks cuDNN for is flash attention, or the memory-efficient one where flash cannot serve it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "mem_efficient": "EFFICIENT_ATTENTION"}


def prepare(torch: Any) -> None:
    from torch import library as operators

    torch.backends.cudnn.enabled = False
    convolutions = _Convolutions(torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced is meant
        operators.impl("aten::convolution", "cuda", convolutions.forward)
        operators.impl("aten::convolution_backward", "cuda", convolutions.backward)
    torch.backends.cuda.enable_cudnn_sdp(False)
    backends = importlib.import_module("torch.nn.attention").SDPBackend
    _Attention(torch._C, {name: int(getattr(backends, word)) for name, word in BACKENDS.items()}).take_over()


class _Convolutions:
    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def forward(self, samples: Any, weight: Any, bias: Any, *options: Any) -> Any:
        if samples.dtype != weight.dtype:  # PyTorch's words, of convolutions through cuDNN
            raise RuntimeError(f"Input type ({_type(samples)}) and weight type ({_type(weight)}) should be the same")
        order = self._order(samples, weight)
        copied = [each.contiguous(memory_format=order) for each in (samples, weight)]
        of_sizes = [each if each is None else each.to("meta") for each in (samples, weight, bias)]
        shape = self.torch.ops.aten.convolution.default(
            *of_sizes, *options
        ).shape  # raises where sizes do not go together
        result = self._empty(samples, shape, order)
        del copied
        return result

    def backward(
        self, gradient: Any, samples: Any, weight: Any, _bias_sizes: Any, *options: Any
    ) -> tuple[Any, Any, Any]:
        mask = options[-1]
        order = self._order(samples, weight)
        copied = [each.contiguous(memory_format=order) for each in (gradient, samples, weight)]
        of_samples = self._empty(samples, samples.shape, order) if mask[0] else None
        of_weight = self._empty(weight, weight.shape, order) if mask[1] else None
        del copied
        # As PyTorch does it, for whatever library.
        of_bias = gradient.sum([0, *range(2, gradient.dim())]) if mask[2] else None
        return of_samples, of_weight, of_bias

    def _order(self, *tensors: Any) -> Any:
        """cudnn_conv_suggest_memory_format in aten/src/ATen/native/ConvUtils.h."""
        last = {4: self.torch.channels_last, 5: self.torch.channels_last_3d}.get(tensors[0].dim())
        is_last = [each.is_contiguous(memory_format=last) and not each.is_contiguous() for each in tensors if last]
        return last if any(is_last) else self.torch.contiguous_format

    def _empty(self, like: Any, shape: Any, order: Any) -> Any:
        return self.torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=order)


def _type(tensor: Any) -> str:
    return str(tensor.type())


class _Attention:
    """The switches of attention's backends: what the program has said, and what follows from it."""

    STANDS_IN = ("flash", "mem_efficient")

    def __init__(self, native: Any, numbers: dict[str, int]) -> None:
        self.native = native
        self.numbers = numbers
        self.set_order = getattr(native, "_set_sdp_priority_order", None)
        self.said = {name: bool(getattr(native, f"_get_{name}_sdp_enabled")()) for name in ("cudnn", *self.STANDS_IN)}
        self.switches = {name: getattr(native, f"_set_sdp_use_{name}") for name in self.STANDS_IN}

    def take_over(self) -> None:
        for name in self.said:
            setattr(self.native, f"_set_sdp_use_{name}", self._say(name))
            setattr(self.native, f"_get_{name}_sdp_enabled", self._tell(name))
        if self.set_order is not None:
            self.native._set_sdp_priority_order = self._order

    def _say(self, name: str) -> Callable[[bool], None]:
        def say(enabled: bool) -> None:
            self.said[name] = bool(enabled)
            for each, switch in self.switches.items():
                switch(self.said[each] or self.said["cudnn"])

        return say

    def _order(self, given: Sequence[int]) -> None:
        """What stands in for cuDNN's attention comes where that does."""
        order = [int(each) for each in given]
        asked = self.numbers["cudnn"]
        if asked in order:
            at = order.index(asked)
            ahead = [self.numbers[name] for name in self.STANDS_IN if self.numbers[name] in order[at:]]
            order = [*order[:at], *ahead, *(each for each in order[at:] if each not in ahead)]
        assert self.set_order is not None
        self.set_order(order)

    def _tell(self, name: str) -> Callable[[], bool]:
        return lambda: self.said[name]
