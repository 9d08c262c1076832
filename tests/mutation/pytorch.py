"""Demands that PyTorch programs on the simulated device notice a missing wait too: one mutant for each kind of wait.

usage: pytorch.py SOURCE WORK LIBCUDA CUDA_HEADERS COMMAND...; the command runs tests/python/races_test.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mutants import MUTANTS
from mutation import Workshop, check

CHOSEN = (
    "a borrower does not wait",
    "a large free forgets other streams",
    "a small free forgets other streams",
    "pending frees count as complete",
    "the owner does not wait for other streams",
)
TEST_TIMEOUT_S = 600


class PyTorchWorkshop(Workshop):
    targets = ("spillway_shared",)

    def __init__(self, source: Path, work: Path, libcuda: Path, headers: Path, command: list[str]) -> None:
        super().__init__(source, work, libcuda, headers)
        self.command = command
        self.environment["SPILLWAY_LIBRARY"] = str(self.build_folder / "lib" / "libspillway.so.0")
        self.environment["SPILLWAY_TEST_SEEDS"] = "3"

    def killer(self) -> str | None:
        done = subprocess.run(
            self.command, env=self.environment, capture_output=True, text=True, timeout=TEST_TIMEOUT_S
        )
        if done.returncode == 0:
            return None
        failed = re.search(r"^(?:FAIL|ERROR): (\S+)", done.stderr, re.MULTILINE)
        return failed.group(1) if failed is not None else f"it ends with {done.returncode}:\n{done.stderr[-2000:]}"


def main() -> int:
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    source, work, libcuda, headers = (Path(argument).resolve() for argument in sys.argv[1:5])
    chosen = [mutant for mutant in MUTANTS if mutant.name in CHOSEN]
    if len(chosen) != len(CHOSEN):
        sys.exit("error: a chosen mutant is not in mutants.py any more")
    return check(chosen, source, lambda: PyTorchWorkshop(source, work, libcuda, headers, sys.argv[5:]))


if __name__ == "__main__":
    sys.exit(main())
