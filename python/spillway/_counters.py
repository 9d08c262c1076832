"""Counters and segments of libspillway in the shapes of PyTorch's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ._library import check, library

POOLED = (
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "requested_bytes",
    "segment",
    "reserved_bytes",
    "inactive_split",
    "inactive_split_bytes",
)
SINGLE = ("oversize_allocations", "oversize_segments")
VALUES = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "max_split_size",
)
BLOCK_STATES = ("inactive", "active_allocated", "active_pending_free")


def flat(names: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Stat(ctypes.Structure):
    _fields_ = flat("current peak allocated freed", ctypes.c_int64)


class PoolStat(ctypes.Structure):
    _fields_ = flat("all small_pool large_pool", Stat)


class Stats(ctypes.Structure):
    """The beginning of spw_stats: all that PyTorch has a name for."""

    _fields_ = [
        *flat("size version", ctypes.c_uint32),
        *flat(" ".join(POOLED), PoolStat),
        *flat(" ".join(SINGLE), Stat),
        *flat(" ".join(VALUES), ctypes.c_int64),
    ]


class PoolId(ctypes.Structure):
    _fields_ = flat("first second", ctypes.c_uint64)


class Block(ctypes.Structure):
    _fields_ = [*flat("address bytes requested_bytes", ctypes.c_uint64), ("state", ctypes.c_int)]


class Segment(ctypes.Structure):
    _fields_ = [
        *flat("address total_bytes allocated_bytes active_bytes requested_bytes stream", ctypes.c_uint64),
        ("pool", PoolId),
        ("blocks", ctypes.POINTER(Block)),
        ("block_count", ctypes.c_uint64),
    ]


POOL_VISITOR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(PoolId), ctypes.POINTER(Stat), ctypes.c_void_p)
VISITOR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Segment), ctypes.c_void_p)


def nested(structure: ctypes.Structure) -> dict[str, Any]:
    values = {name: getattr(structure, name) for name, _ in structure._fields_}  # type: ignore[misc]
    return {name: nested(v) if isinstance(v, ctypes.Structure) else v for name, v in values.items()}


def stats(device: int) -> dict[str, Any]:
    """As torch.cuda.memory_stats_as_nested_dict(). Errors: SpillwayError, no such device."""
    read = Stats(size=ctypes.sizeof(Stats))
    check(library().spw_stats_get(device, ctypes.byref(read)))
    values = nested(read)
    del values["size"], values["version"]
    return values


def pool_bytes(device: int) -> dict[tuple[int, int], Any]:
    """What each private pool holds, as in torch.cuda.memory_stats_as_nested_dict(). Errors: as stats()."""
    found: dict[tuple[int, int], Any] = {}

    def visit(pool: Any, held: Any, _: object) -> int:
        bytes_held = nested(held.contents)
        found[pool.contents.first, pool.contents.second] = {
            "all": bytes_held,
            "small_pool": nested(Stat()),
            "large_pool": bytes_held,
        }
        return 0

    check(library().spw_walk_pools(device, POOL_VISITOR(visit), None))
    return found


def segments(device: int, wanted: Callable[[tuple[int, int]], bool]) -> list[dict[str, Any]]:
    """As torch.cuda.memory_snapshot(), of the pools that are wanted."""
    found: list[dict[str, Any]] = []

    def visit(segment: Any, _: object) -> int:
        row = segment.contents
        pool = (row.pool.first, row.pool.second)
        if wanted(pool):
            found.append(
                {
                    "device": device,
                    "address": row.address,
                    "total_size": row.total_bytes,
                    "allocated_size": row.allocated_bytes,
                    "active_size": row.active_bytes,
                    "requested_size": row.requested_bytes,
                    "stream": row.stream,
                    "segment_type": "large",
                    "segment_pool_id": pool,
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [to_block(block) for block in row.blocks[: row.block_count]],
                }
            )
        return 0

    check(library().spw_walk(device, VISITOR(visit), None))
    return found


def to_block(block: Any) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.bytes,
        "requested_size": block.requested_bytes,
        "state": BLOCK_STATES[block.state],
        "frames": [],
    }


def settings() -> str:
    """The configuration in force, as SPILLWAY_CONF has it."""
    needed = ctypes.c_size_t()
    check(library().spw_conf_get(None, None, 0, ctypes.byref(needed)))
    text = ctypes.create_string_buffer(needed.value)
    check(library().spw_conf_get(None, text, needed.value, None))
    return text.value.decode()
