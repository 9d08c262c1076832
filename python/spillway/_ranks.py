"""`spillway dryrun --world-size 1024 --ranks 0,511`: these ranks of a job run, and the others are taken to do the same.

This module starts them, and stands in each of them for what would wait for ranks that do not run: stores, whose keys
lie where the ranks meet, and process groups of the CPU. Their NCCL is the simulated one, which knows.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ._errors import SpillwayError

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
        # What asks a store from threads of its own.
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }


def start(command: list[str], world: int, devices: int) -> int:
    """Runs the ranks; answers the exit code of the first that failed, 128 + N for signal N."""
    processes = [
        subprocess.Popen(command, env={**os.environ, **environment_of(rank, world, devices)})
        for rank in ranks_of(world)
    ]

    def end(number: int, _: object) -> NoReturn:
        for process in processes:
            process.send_signal(number)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    code, failed_at = 0, 0.0
    while any(process.poll() is None for process in processes):
        time.sleep(0.05)
        failed = [process.returncode for process in processes if process.returncode not in (None, 0)]
        if failed and not failed_at:
            code, failed_at = failed[0], time.monotonic()
        if failed_at and time.monotonic() - failed_at > 3:  # what waits for it would wait for long
            for process in processes:
                process.terminate()
    failed = [process.returncode for process in processes if process.returncode != 0]
    code = code or (failed[0] if failed else 0)
    return code if code >= 0 else 128 - code


def watch_launcher(torch: Any, devices: int) -> None:
    """In a process that is no rank: torchrun starts the ranks that run, and no more than there are devices for."""
    from torch.distributed.launcher import api

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


def stand_in(torch: Any) -> None:
    """In a rank: for the ranks that do not run."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    c10d = distributed.distributed_c10d
    groups: dict[str, list[int]] = {}
    _watch_groups(c10d, groups)
    stores = _stores(distributed, set(ranks_of(_number("WORLD_SIZE"))), groups)
    # The package has a function of that name as well.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    for module in (distributed, rendezvous, c10d):
        for name, store in stores.items():
            if hasattr(module, name):
                setattr(module, name, store)
    if hasattr(c10d, "ProcessGroupGloo"):
        c10d.ProcessGroupGloo = _host_groups(c10d)
    _split_by_new_groups(distributed, c10d)


def _watch_groups(c10d: Any, groups: dict[str, list[int]]) -> None:
    """Of each group by its name: the ranks of it."""
    make = c10d._new_process_group_helper

    def new_process_group_helper(
        size: int, rank: int, ranks: list[int], backend: Any, store: Any, name: str, **more: Any
    ) -> Any:
        groups[str(name)] = list(ranks) or list(range(size))
        # A group that has a device is split, which takes what ranks that do not run know.
        return make(size, rank, ranks, backend, store, name, **{**more, "device_id": None})

    c10d._new_process_group_helper = new_process_group_helper


def _split_by_new_groups(distributed: Any, c10d: Any) -> None:
    def split_group(
        parent_pg: Any = None,
        split_ranks: Any = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: Any = None,
    ) -> Any:
        mine = None
        parent = distributed.get_process_group_ranks(parent_pg or distributed.group.WORLD)
        for ranks in split_ranks or []:
            group = distributed.new_group([parent[rank] for rank in ranks], timeout=timeout, group_desc=group_desc)
            if distributed.get_rank() in [parent[rank] for rank in ranks]:
                mine = group
        return mine

    for module in (distributed, c10d):
        if hasattr(module, "split_group"):
            module.split_group = split_group


def _host_groups(c10d: Any) -> Any:
    """Process groups of the CPU: each rank gets what it gives."""
    from torch._C._distributed_c10d import FakeProcessGroup

    group: Any = FakeProcessGroup
    group._set_sequence_number_for_group = lambda _: None  # it refuses, and Gloo does not

    class OfHost(type):
        def __call__(cls, _: Any, rank: int, size: int, **more: Any) -> Any:
            return FakeProcessGroup._create_internal(rank, size)

        def __instancecheck__(cls, one: Any) -> bool:
            return isinstance(one, FakeProcessGroup)

    return OfHost("ProcessGroupGloo", (), {"create_default_device": staticmethod(lambda **_: None)})


# The keys of communicators: of a number, of two ranks, of which the first gives it, or of one of many givers, of which
# the simulated NCCL needs the first, rank 0.
_ID = re.compile(r"(?:^|/)([^/]+)//cuda//(?:(\d+)(:\d+)?|UniqueNCCLID:(\d+))$")
_ID_BYTES = 128

# PyTorch holds what is of C++ in a store, and calls Python while that is there.
_kept: list[Any] = []

_SET, _GET, _ADD, _WAIT, _CHECK, _DELETE, _COMPARE_SET, _APPEND, _COUNT = range(9)


def _caller() -> Callable[..., tuple[bytes, int]]:
    library = ctypes.CDLL("libspillway_nccl.so.0")

    def call(what: int, key: str, value: bytes = b"", number: int = 0) -> tuple[bytes, int]:
        size, count, answer = ctypes.c_size_t(len(value)), ctypes.c_int64(number), ctypes.c_void_p()
        references = (ctypes.byref(size), ctypes.byref(count), ctypes.byref(answer))
        if not library.spwNcclStore(what, key.encode(), value, *references):
            raise SpillwayError("the ranks' meeting is over")
        return ctypes.string_at(answer, size.value) if size.value else b"", count.value

    return call


def _packed(items: Sequence[str | bytes]) -> bytes:
    every = [item.encode() if isinstance(item, str) else item for item in items]
    return b"".join(len(item).to_bytes(8, sys.byteorder) + item for item in every)


def _stores(distributed: Any, running: set[int], groups: dict[str, list[int]]) -> dict[str, Any]:
    call = _caller()

    class PeersStore(distributed.Store):  # type: ignore[misc]
        """A store whose keys lie where the ranks meet."""

        def __init__(self, place: str) -> None:
            super().__init__()
            self.place = place
            _kept.append(self)

        def _key(self, key: str) -> str:
            return f"{self.place}/{key}"

        def clone(self) -> Any:
            return type(self)(self.place)

        def set(self, key: str, value: str | bytes) -> None:
            call(_SET, self._key(key), value.encode() if isinstance(value, str) else value)

        def get(self, key: str) -> bytes:
            found = _ID.search(key)
            if found is not None and found[1] in groups:
                giver = int(found[2]) if found[3] else 0
                is_spare = found[4] is not None and int(found[4]) > 0
                if is_spare or groups[found[1]][giver] not in running:
                    return hashlib.shake_128(self._key(key).encode()).digest(_ID_BYTES)
            return call(_GET, self._key(key))[0]

        def add(self, key: str, amount: int) -> int:
            return call(_ADD, self._key(key), number=amount)[1]

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            call(_WAIT, "", _packed([self._key(key) for key in keys]))

        def check(self, keys: list[str]) -> bool:
            return call(_CHECK, "", _packed([self._key(key) for key in keys]))[1] != 0

        def delete_key(self, key: str) -> bool:
            return call(_DELETE, self._key(key))[1] != 0

        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            return call(_COMPARE_SET, self._key(key), _packed([expected, desired]))[0]

        def append(self, key: str, value: str | bytes) -> None:
            call(_APPEND, self._key(key), value.encode() if isinstance(value, str) else value)

        def multi_get(self, keys: list[str]) -> list[bytes]:
            return [self.get(key) for key in keys]

        def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

        def num_keys(self) -> int:
            return call(_COUNT, "")[1]

        def has_extended_api(self) -> bool:
            return True

    class PeersTCPStore(PeersStore):
        def __init__(self, host_name: str = "", port: int = 0, *_: Any, **more: Any) -> None:
            super().__init__(f"{host_name}:{port}" if port or host_name else host_name)
            self.host, self.port = host_name, port

        def clone(self) -> Any:
            return type(self)(self.host, self.port)

    class PeersFileStore(PeersStore):
        def __init__(self, file_name: str, *_: Any, **more: Any) -> None:
            super().__init__(file_name)
            self.path = file_name

    return {"TCPStore": PeersTCPStore, "FileStore": PeersFileStore}


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
