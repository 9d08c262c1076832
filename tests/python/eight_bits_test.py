"""The error of eight bits for each number is bounded as promised: on a GPU where there is one, else without."""

from __future__ import annotations

import os
import unittest
from typing import Any

from spillway._offload import eight_bits
from spillway._pytorch.install import import_torch

torch: Any = import_torch()
DEVICE = "cuda" if os.environ.get("SPILLWAY_TEST_GPU") else "cpu"
TYPES = (torch.float32, torch.bfloat16, torch.float16)
GROUP = eight_bits.GROUP
ROUNDED = torch.finfo(torch.float32).eps


def there_and_back(numbers: Any) -> Any:
    packed = eight_bits.pack(numbers)
    assert packed.nbytes == numbers.numel() + 4 * -(-numbers.numel() // GROUP), packed.nbytes
    return eight_bits.unpack(packed, numbers.numel(), numbers.dtype)


def excess(numbers: Any, back: Any) -> float:
    """By how much the worst error is above the bound of its group, in bounds."""
    worst = 0.0
    for begin in range(0, numbers.numel(), GROUP):
        group = numbers[begin : begin + GROUP].double()
        error = (back[begin : begin + GROUP].double() - group).abs().max().item()
        largest = group.abs().max().item()
        # The arithmetic of float32, then half a unit in the last place of the largest, which is the type's own
        # rounding, or of the smallest numbers.
        finfo = torch.finfo(numbers.dtype)
        bound = largest / 252 + largest * ROUNDED + largest * finfo.eps / 2 + finfo.smallest_normal * finfo.eps / 2
        worst = max(worst, error / bound)
    return worst - 1.0


class EightBits(unittest.TestCase):
    def test_error_is_within_its_bound(self) -> None:
        generator = torch.Generator().manual_seed(7)
        for dtype in TYPES:
            for count in (1, GROUP - 1, GROUP, GROUP + 1, 5 * GROUP + 77):
                for scale in (1e-6, 1.0, 1e4):
                    with self.subTest(dtype=dtype, count=count, scale=scale):
                        numbers = (torch.randn(count, generator=generator) * scale).to(dtype).to(DEVICE)
                        self.assertLessEqual(excess(numbers, there_and_back(numbers)), 0.0)

    def test_groups_do_not_spoil_each_other(self) -> None:
        numbers = torch.full((3 * GROUP,), 1e-3, device=DEVICE)
        numbers[GROUP] = 1e6
        back = there_and_back(numbers)
        for begin in (0, 2 * GROUP):
            torch.testing.assert_close(back[begin : begin + GROUP], numbers[begin : begin + GROUP])
        # The scale and the product are rounded, and a GPU divides by a number as it multiplies by its inverse.
        self.assertAlmostEqual(back[GROUP].item(), 1e6, delta=1e6 * 2 * ROUNDED)

    def test_extremes(self) -> None:
        for dtype in TYPES:
            finfo = torch.finfo(dtype)
            for value in (0.0, finfo.max, finfo.min, finfo.smallest_normal):
                with self.subTest(dtype=dtype, value=value):
                    numbers = torch.full((GROUP + 3,), value, dtype=dtype, device=DEVICE)
                    numbers[1] = 0
                    back = there_and_back(numbers)
                    self.assertTrue(back.isfinite().all())
                    self.assertLessEqual(excess(numbers, back), 0.0)

    def test_what_is_not_finite_stays_so_and_harms_no_other(self) -> None:
        generator = torch.Generator().manual_seed(8)
        for dtype in TYPES:
            numbers = torch.randn(2 * GROUP, generator=generator).to(dtype).to(DEVICE)
            expected = excess(numbers, there_and_back(numbers))
            odd = {5: torch.inf, 6: -torch.inf, 7: torch.nan, GROUP + 1: -torch.inf}
            damaged = numbers.clone()
            for place, value in odd.items():
                damaged[place] = value
            back = there_and_back(damaged)
            torch.testing.assert_close(back[list(odd)], damaged[list(odd)], equal_nan=True)
            for place in odd:
                back[place] = numbers[place]
            with self.subTest(dtype=dtype):
                self.assertLessEqual(excess(numbers, back), max(expected, 0.0))
        nothing_else = torch.full((GROUP,), -torch.inf, device=DEVICE)
        self.assertTrue(torch.equal(there_and_back(nothing_else), nothing_else))

    def test_gradients_of_masked_numbers(self) -> None:
        generator = torch.Generator().manual_seed(9)
        scores = torch.randn(4, GROUP, generator=generator).to(DEVICE).requires_grad_()
        mask = torch.rand(4, GROUP, generator=generator).to(DEVICE) < 0.1

        def gradient() -> Any:
            (out,) = torch.autograd.grad(torch.logsumexp(scores.masked_fill(mask, -torch.inf), 1).sum(), scores)
            return out

        def pack(tensor: Any) -> Any:
            return (eight_bits.pack(tensor.flatten()), tensor.shape) if tensor.is_floating_point() else tensor

        def unpack(packed: Any) -> Any:
            if not isinstance(packed, tuple):
                return packed
            return eight_bits.unpack(packed[0], packed[1].numel(), torch.float32).view(packed[1])

        exact = gradient()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            torch.testing.assert_close(gradient(), exact, rtol=0.05, atol=0.0)

    def test_pieces_join(self) -> None:
        """More than is packed at a time."""
        count = eight_bits.CHUNK + 3 * GROUP + 5
        numbers = torch.arange(count, device=DEVICE).remainder(251).float() - 125
        back = there_and_back(numbers)
        self.assertLessEqual((back - numbers).abs().max().item(), 125 / 252 * 1.00001)

    def test_numbers_of_a_whole_storage(self) -> None:
        whole = torch.arange(64, dtype=torch.bfloat16, device=DEVICE)
        self.assertTrue(torch.equal(eight_bits.numbers_of(whole[8:24].view(4, 4).t()), whole))
        self.assertTrue(eight_bits.serves(whole[1:]))
        for other in (torch.int8, torch.int64, torch.float64, torch.bool, torch.complex64):
            self.assertFalse(eight_bits.serves(torch.zeros(64, dtype=other, device=DEVICE)), other)


if __name__ == "__main__":
    unittest.main()
