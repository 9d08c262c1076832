"""What the tests of the live view share: programs to watch on the simulated device, and the command."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass
class Watched:
    """Where things are. `folder` is the live_dir of the programs."""

    command: str
    spillway: str
    driver: str
    folder: str
    libraries: str = ""  # where the command finds its own, if not beside it

    def environment(self) -> dict[str, str]:
        conf = f"live_dir:{self.folder},live_interval:100"
        own = {"LD_LIBRARY_PATH": self.libraries} if self.libraries else {}
        return os.environ | {"SPILLWAY_LIBCUDA": self.driver, "SPILLWAY_CONF": conf} | own

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = self.environment() | more
        return subprocess.run(
            [self.command, *words], capture_output=True, text=True, timeout=120, check=False, env=environment
        )

    @contextmanager
    def program(self, fewest_mib: int) -> Iterator[subprocess.Popen[str]]:
        script = Path(__file__).with_name("program.py")
        with subprocess.Popen(
            [sys.executable, str(script), self.spillway, self.driver, str(fewest_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(),
        ) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
                yield process
            finally:
                process.kill()


@contextmanager
def watched(words: list[str]) -> Iterator[Watched]:
    """From the command line: the command, the library, the driver."""
    with tempfile.TemporaryDirectory(prefix="spillway-live-") as folder:
        yield Watched(words[1], words[2], words[3], folder)


def eventually(is_so: Callable[[], bool], what: str) -> None:
    """Looks for a minute."""
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError(f"this never came: {what}")
