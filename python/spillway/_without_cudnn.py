"""What PyTorch asks cuDNN for on the simulated device, which has none.

Convolutions are PyTorch's own. Its kernel of three dimensions goes through the samples one by one and fills each
channel by itself: a tower of images whose patches are samples (Qwen-VL) takes a minute for one image so. Here it makes
its result and nothing else, as cuDNN does beside a workspace.

Attention that a program asks cuDNN for is flash attention, or the memory-efficient one where flash cannot serve it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "mem_efficient": "EFFICIENT_ATTENTION"}
_kept: list[Any] = []  # PyTorch forgets what was replaced with the object that replaced it


def prepare(torch: Any) -> None:
    from torch import library

    torch.backends.cudnn.enabled = False
    replaced: Any = library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced is meant
        replaced.impl("slow_conv_dilated3d", _convolution, "CUDA")
    _kept.append(replaced)
    torch.backends.cuda.enable_cudnn_sdp(False)
    backends = importlib.import_module("torch.nn.attention").SDPBackend
    _Attention(torch._C, {name: int(getattr(backends, word)) for name, word in BACKENDS.items()}).take_over()


def _convolution(
    samples: Any,
    weight: Any,
    kernel: Sequence[int],
    _bias: Any = None,
    stride: Sequence[int] = (1, 1, 1),
    padding: Sequence[int] = (0, 0, 0),
    dilation: Sequence[int] = (1, 1, 1),
) -> Any:
    sizes = zip(samples.shape[-3:], padding, dilation, kernel, stride, strict=True)
    space = [(size + 2 * pad - apart * (wide - 1) - 1) // step + 1 for size, pad, apart, wide, step in sizes]
    return samples.new_empty([*samples.shape[:-4], weight.shape[0], *space])


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
