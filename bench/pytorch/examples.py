"""The examples of examples/pytorch, run as their users would run them."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simulated import ROOT, Outcome, run

FOLDER = ROOT / "examples" / "pytorch"


@dataclass(frozen=True)
class Example:
    command: str
    ranks: int = 1

    @property
    def script(self) -> Path:
        return FOLDER / self.command.split()[0]

    def program(self, arguments: str) -> Callable[[], None]:
        def main() -> None:
            sys.argv = [str(self.script), *self.command.split()[1:], *arguments.split()]
            sys.path.insert(0, str(FOLDER))
            runpy.run_path(str(self.script), run_name="__main__")

        return main

    def run(self, allocator: str, device_bytes: int, arguments: str) -> list[Outcome]:
        device = f"capacity:{device_bytes}B,devices:{self.ranks},races:off,vmm_in_capture:allow"
        return run(self.program(arguments), allocator, device, self.ranks)


EXAMPLES = (
    Example("train_transformer.py"),
    Example("train_transformer.py --recompute"),
    Example("train_hugging_face.py"),
    Example("train_distributed.py --strategy ddp", ranks=2),
    Example("train_distributed.py --strategy fsdp", ranks=2),
    Example("train_compiled.py"),
    Example("train_graphed.py --capture step"),
    Example("train_graphed.py --capture layers"),
    Example("generate.py"),
)
