"""Programs under the preload library, and what their dumps say afterwards.

On the simulated device, or on a GPU where SPILLWAY_TEST_GPU is set.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUILD = Path(os.environ["SPILLWAY_BUILD"])
PROGRAMS = Path(os.environ["SPILLWAY_PROGRAMS"])
COMMAND = os.environ["SPILLWAY_COMMAND"]
PRELOAD = BUILD / "lib" / "libspillway_preload.so"
AUDITOR = BUILD / "lib" / "libspillway_audit.so"
SIM = BUILD / "lib" / "sim"
DRIVER = SIM / "libcuda.so.1"
ON_GPU = "SPILLWAY_TEST_GPU" in os.environ
# A library that is built for a sanitizer wants this to come before everything else, in programs that are not.
SANITIZER = os.environ.get("SPILLWAY_SANITIZER")


@dataclass
class Run:
    code: int
    out: str
    err: str
    dumps: list[dict[str, Any]] = field(default_factory=list)
    oom_dumps: list[dict[str, Any]] = field(default_factory=list)

    def device(self) -> dict[str, Any]:
        """The only device of the only process that used one."""
        devices = [device for dump in self.dumps for device in dump["devices"]]
        assert len(devices) == 1, (devices, self.err)
        return dict(devices[0])

    def stats(self) -> dict[str, Any]:
        return dict(self.device()["stats"])

    def report(self) -> str:
        """What `spillway report` says of the dumps."""
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"{i}.json" for i in range(len(self.dumps))]
            for file, dump in zip(files, self.dumps, strict=True):
                file.write_text(json.dumps(dump))
            return subprocess.run([COMMAND, "report", *files], capture_output=True, text=True, check=True).stdout

    def served(self) -> int:
        return int(self.stats()["allocation"]["all"]["allocated"]) if self.dumps else 0


def run(
    *command: str | Path,
    preload: list[Path] | None = None,
    simulated: str = "capacity:4GiB",
    **variables: str,
) -> Run:
    """LD_PRELOAD is `preload`, the library under test alone unless told."""
    libraries = [str(path) for path in (preload if preload is not None else [PRELOAD])]
    if SANITIZER is not None:
        libraries.insert(0, SANITIZER)
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "LD_PRELOAD": ":".join(libraries),
            # Programs end in the middle here, as the preload library does with them; and the command puts it first.
            "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
            **({} if ON_GPU else {"SPILLWAY_LIBCUDA": str(DRIVER), "SPILLWAY_SIM": simulated}),
            "SPILLWAY_STATS": f"{folder}/%p.json",
            **variables,
        }
        done = subprocess.run(
            [str(word) for word in command], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        dumps: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for path in sorted(Path(folder).glob("*.json")):
            dumps[path.name.endswith(".oom.json")].append(json.loads(path.read_text()))
    return Run(done.returncode, done.stdout, done.stderr, dumps[False], dumps[True])
