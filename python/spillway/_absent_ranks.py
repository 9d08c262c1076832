"""What stands in for the ranks of a job that do not run, in a rank that does: stores, groups and their splits."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ._errors import SpillwayError
from ._ranks import ranks_of


def stand_in(torch: Any) -> None:
    """In a rank: for the ranks that do not run."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    c10d = distributed.distributed_c10d
    groups: dict[str, list[int]] = {}
    _watch_groups(c10d, groups)
    stores = _stores(distributed, set(ranks_of(int(os.environ.get("WORLD_SIZE") or 0))), groups)
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
    # It refuses the first and lacks the second, which Gloo has.
    for name in ("_set_sequence_number_for_group", "_set_default_timeout"):
        setattr(group, name, lambda *_: None)

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
