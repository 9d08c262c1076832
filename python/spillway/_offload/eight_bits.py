"""Floating-point numbers as eight bits each, and a scale for every group of 256. Lossy: for those who ask for it.

With m the largest finite magnitude of its group, a number comes back with an error of at most m / 252, and what
float32 (a unit in the last place of m) and its type round: half of the distance between two values of int8 after m
became 126 (symmetric absmax quantisation of blocks, as in Dettmers et al., "8-bit Optimizers via Block-wise
Quantization", 2022, section 2.1, but in linear steps). The values of int8 beyond stand for infinities and NaN, which
come back as they were: masks are made of them.
"""

from __future__ import annotations

from typing import Any

from .._pytorch.install import import_torch

GROUP = 256
# At a time, in numbers: 16 MiB of float32 beside what is packed.
CHUNK = 1 << 22
LARGEST, INFINITY, NAN = 126, 127, -128


def serves(tensor: Any) -> bool:
    """Whether the tensor's storage is of such numbers."""
    torch = import_torch()
    known = tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return known and tensor.untyped_storage().nbytes() % tensor.element_size() == 0


def numbers_of(tensor: Any) -> Any:
    """All of the tensor's storage, in one dimension."""
    torch = import_torch()
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return flat.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))


def packed_bytes(count: int) -> int:
    """Of so many numbers: their scales, and a byte each."""
    return 4 * _groups(count) + count


def pack(numbers: Any) -> Any:
    """New bytes: the scales, then the numbers. `numbers` has one dimension."""
    torch = import_torch()
    with torch.no_grad():
        count = numbers.numel()
        packed = torch.empty(packed_bytes(count), dtype=torch.uint8, device=numbers.device)
        for rows, scales, eight in _rows(numbers, packed):
            finite = rows.isfinite()
            scales.copy_(torch.where(finite, rows, 0).abs_().amax(1).float() / LARGEST)
            divisor = torch.where(scales > 0, scales, 1.0)
            # An infinity is one after the division, too. The scale of smallest numbers may have been rounded down.
            most = INFINITY - finite.to(torch.int8)
            steps = torch.div(rows, divisor[:, None]).round_()
            eight.copy_(torch.minimum(torch.maximum(steps, -most), most).nan_to_num_(nan=NAN))
    return packed


def unpack(packed: Any, count: int, dtype: Any) -> Any:
    """As many new numbers, in one dimension."""
    torch = import_torch()
    with torch.no_grad():
        numbers = torch.empty(count, dtype=dtype, device=packed.device)
        most = torch.finfo(dtype).max
        for rows, scales, eight in _rows(numbers, packed):
            # The largest number's scale may have been rounded up.
            values = (eight.float() * scales[:, None]).clamp_(-most, most)
            for code, value in ((INFINITY, torch.inf), (-INFINITY, -torch.inf), (NAN, torch.nan)):
                values.masked_fill_(eight == code, value)
            rows.copy_(values)
    return numbers


def _groups(count: int) -> int:
    return -(-count // GROUP)


def _rows(numbers: Any, packed: Any) -> Any:
    """Groups of the numbers, a row each, with their scales and their eight bits."""
    torch = import_torch()
    count = numbers.numel()
    scales = packed[: 4 * _groups(count)].view(torch.float32)
    eight = packed[4 * _groups(count) :].view(torch.int8)
    whole = count // GROUP * GROUP
    for begin in range(0, whole, CHUNK):
        end = min(whole, begin + CHUNK)
        yield (
            numbers[begin:end].view(-1, GROUP),
            scales[begin // GROUP : end // GROUP],
            eight[begin:end].view(-1, GROUP),
        )
    if whole < count:
        yield numbers[whole:].view(1, -1), scales[-1:], eight[whole:].view(1, -1)
