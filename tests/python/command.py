"""The command, as a program of its own, in the tests' environment."""

from __future__ import annotations

import os
import subprocess

COMMAND = os.environ["SPILLWAY_COMMAND"]


def spillway(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # dryrun brings the simulated device itself; what simulates the device for these tests stays out of its way.
    given = {**os.environ, **environment}
    if words[0] == "dryrun":
        given.pop("LD_PRELOAD", None)
    return subprocess.run([COMMAND, *words], env=given, capture_output=True, text=True, check=False)
