"""A test that fails where a change makes it need more device memory.

pytest test_memory_limit.py                     # without a GPU it runs on a simulated device
spillway run -- pytest test_memory_limit.py     # with Spillway as PyTorch's allocator
"""

from __future__ import annotations

import pytest
import torch

MIB = 1 << 20


@pytest.fixture
def model() -> torch.nn.Module:
    """4 MiB, which the test does not pay for."""
    return torch.nn.Linear(1024, 1024, bias=False, device="cuda")


@pytest.mark.limit_device_memory("8MiB")
def test_the_result_is_written_in_place(model: torch.nn.Linear) -> None:
    scaled = model.weight.detach().clone()
    scaled.mul_(2).add_(1)
    assert scaled.nbytes == 4 * MIB
