"""What the demands of torch_memory_saver's examples share: each program runs in a process of its own, so it has the
environment that it sets before it imports the module."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from on_seeds import torch

MIB = 1 << 20
MODULE = "spillway.compat.torch_memory_saver"
EVERYTHING = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "yes"}


def saver_in(**environment: str) -> Any:
    assert MODULE not in sys.modules
    os.environ.update(environment)
    return importlib.import_module(MODULE).torch_memory_saver


def filled(value: int, mebibytes: int = 8, device: str = "cuda") -> Any:
    return torch.full((mebibytes * MIB // 4,), value, dtype=torch.int32, device=device)


def wrong(tensor: Any, value: int) -> int:
    return int((tensor.cpu() != value).any())


def used(index: int = 0) -> int:
    torch.cuda.synchronize(index)
    free, total = torch.cuda.mem_get_info(index)
    return int(total - free)


def resident_bytes() -> int:
    """Of the process, without what it shares, as the simulated device's memory."""
    status = Path("/proc/self/status").read_text().split("RssAnon:")[1]
    return int(status.split()[0]) * 1024
