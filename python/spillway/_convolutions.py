"""Convolutions on the simulated device, which has no cuDNN.

PyTorch's own kernel of three dimensions goes through the samples one by one and fills each channel by itself. A tower
of images whose patches are samples (Qwen-VL) takes a minute for one image so. Here it makes its result and nothing
else, as cuDNN does beside a workspace.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

_kept: list[Any] = []  # PyTorch forgets what a library says with the library


def prepare_convolutions(torch: Any) -> None:
    torch.backends.cudnn.enabled = False
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced is meant
        library.impl("slow_conv_dilated3d", _result, "CUDA")
    _kept.append(library)


def _result(
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
