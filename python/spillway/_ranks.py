"""`spillway dryrun --world-size 1024 --ranks 0,511`: these ranks of a job are started, and no others.

What stands in for the others is in _absent_ranks.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

# Start a job's processes themselves.
LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "accelerate.commands.launch",
)


def main(command: Sequence[str]) -> NoReturn:
    """Starts the command once for each rank, or as it is, where what it starts will start them."""
    python = re.fullmatch(r"python[\d.]*t?d?", os.path.basename(command[0])) is not None
    words = [os.path.basename(command[0]), *([command[2]] if python and command[1:2] == ["-m"] else [])]
    if not python or any(word in LAUNCHERS for word in words):
        os.execvp(command[0], list(command))
    world = _number("SPILLWAY_DRYRUN_WORLD")
    if world == 0:
        sys.exit("spillway: how many ranks does the job have? --world-size N, or a command of torchrun")
    sys.exit(start(list(command), world, _number("SPILLWAY_DRYRUN_DEVICES")))


def _number(variable: str) -> int:
    return int(os.environ.get(variable) or 0)


def ranks_of(world: int) -> list[int]:
    ranks = [int(rank) for rank in os.environ["SPILLWAY_DRYRUN_RANKS"].split(",")]
    if beyond := [rank for rank in ranks if rank >= world]:
        sys.exit(f"spillway: --ranks has {beyond[0]}, and the job has ranks 0 to {world - 1}")
    return ranks


def environment_of(rank: int, world: int, devices: int) -> dict[str, str]:
    """As torchrun gives it."""
    nodes = -(-world // devices)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % devices),
        "LOCAL_WORLD_SIZE": str(min(devices, world)),
        "GROUP_RANK": str(rank // devices),
        "NODE_RANK": str(rank // devices),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "spillway",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        # These would ask a store from threads of their own.
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }


def start(command: list[str], world: int, devices: int) -> int:
    """Runs the ranks; answers the exit code of the first that failed, 128 + N for signal N."""
    processes = [
        subprocess.Popen(command, env={**os.environ, **environment_of(rank, world, devices)})
        for rank in ranks_of(world)
    ]

    code, failed_at, told = 0, 0.0, 0

    def end(number: int, _: object) -> None:
        nonlocal told
        told = told or number
        for process in processes:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, end)
    while any(process.poll() is None for process in processes):
        time.sleep(0.05)
        failed = [process.returncode for process in processes if process.returncode not in (None, 0)]
        if failed and not failed_at:
            code, failed_at = failed[0], time.monotonic()
        if failed_at and time.monotonic() - failed_at > 3:  # what waits for it would wait for long
            failed_at = math.inf  # each is told once, and says what it held before it ends
            for process in processes:
                process.terminate()
    if told:
        return 128 + told
    failed = [process.returncode for process in processes if process.returncode != 0]
    code = code or (failed[0] if failed else 0)
    return code if code >= 0 else 128 - code


def watch_launcher(api: Any, devices: int) -> None:
    """In a process that is no rank: torchrun starts the ranks that run, and no more than there are devices for.

    `api` is torch.distributed.launcher.api.
    """
    launch = api.launch_agent

    def launch_agent(config: Any, entrypoint: Any, args: list[Any]) -> Any:
        local = config.nproc_per_node
        if "SPILLWAY_DRYRUN_RANKS" not in os.environ:
            if local > devices:
                have = "1 simulated device" if devices == 1 else f"{devices} simulated devices"
                _refuse(f"{local} processes are to be started on a machine with {have}: give --devices {local}")
            return launch(config, entrypoint, args)
        world = _number("SPILLWAY_DRYRUN_WORLD")
        if world == 0 and local > devices:
            _refuse(f"{local} processes are to be started on each node: give --devices {local}")
        if not isinstance(entrypoint, str):
            _refuse("--ranks starts commands, and this launcher has a function to start")
        code = start([entrypoint, *args], world or config.max_nodes * local, devices if world else local)
        if code != 0:
            raise SystemExit(code)
        return {}

    api.launch_agent = launch_agent


def _refuse(problem: str) -> NoReturn:
    print(f"spillway: {problem}", file=sys.stderr)
    raise SystemExit(1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
