"""Runs Python on the device that tests use: a GPU where SPILLWAY_TEST_GPU is set, else the simulated one. Where
SPILLWAY_UNCONTROLLED is set too, what is tested for a GPU runs on a simulated driver that has no controls.

usage: on_device.py STAND_INS PYTHON_ARGUMENT...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import warm


def environment(stand_ins: Path) -> dict[str, str]:
    """The simulated device goes before the libraries of NVIDIA, wherever PyTorch looks for them."""
    values = dict(os.environ)
    uncontrolled = "SPILLWAY_UNCONTROLLED" in values
    if not values.get("SPILLWAY_TEST_GPU") or uncontrolled:
        driver = stand_ins.with_name("uncontrolled" if uncontrolled else stand_ins.name) / "libcuda.so.1"
        libraries = [driver if path.name == driver.name else path for path in sorted(stand_ins.glob("*.so.*"))]
        values["LD_PRELOAD"] = ":".join(str(path) for path in libraries)
        values.setdefault("SPILLWAY_LIBCUDA", str(driver))
        # Tests run side by side, and what PyTorch computes in them is small.
        values.setdefault("OMP_NUM_THREADS", "1")
    return values


def of_ctest() -> int | None:
    """The run of ctest that this process is a test of."""
    parent = os.getppid()
    return parent if Path(f"/proc/{parent}/comm").read_text().strip() == "ctest" else None


if __name__ == "__main__":
    values, arguments = environment(Path(sys.argv[1])), sys.argv[2:]
    run = of_ctest()
    if run is None or (os.environ.get("SPILLWAY_TEST_GPU") and "SPILLWAY_UNCONTROLLED" not in os.environ):
        os.execve(sys.executable, [sys.executable, *arguments], values)
    server = warm.address_of_run(run, values)
    code = warm.ask(server, arguments, {**values, warm.SERVER: server.removeprefix("\0")}, [0, 1, 2])
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)
