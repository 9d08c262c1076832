"""Runs a program of PyTorch on the late simulated device, each seed in a process of its own: a failure then needs its
seed only. SPILLWAY_TEST_SEEDS sets how many. On a GPU (SPILLWAY_TEST_GPU) there is one seed, work runs when the device
pleases, a limit stands for the capacity, and no race is reported; bytes are those of real kernels.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import spillway
from spillway import sim
from spillway._library import check, get_limit, library

torch: Any = importlib.import_module("torch")
# Optimizers and checkpointing import this when they are first used, once for all children.
importlib.import_module("torch._dynamo")

ON_GPU = "SPILLWAY_TEST_GPU" in os.environ
SEEDS = 1 if ON_GPU else int(os.environ.get("SPILLWAY_TEST_SEEDS", "8"))
ALLOCATORS = ("native", "spillway")
COUNTERS = ("requested", "allocated", "active", "reserved")

Request = tuple[str, int]  # "alloc" or "free_requested", and how many bytes


@dataclass
class Outcome:
    reports: list[str] = field(default_factory=list)
    requests: dict[str, list[Request]] = field(default_factory=dict)  # by program
    steps: list[tuple[int, int]] = field(default_factory=list)  # allocations so far and live ones, after each step
    damaged: int = 0  # copies that are not what was copied
    touched: int = 0
    restored: int = 0  # pools that graph trees put back
    recorded: int = 0  # graphs of graph trees
    failure: str = ""


Program = Callable[[Outcome], None]


def run(program: Program, allocator: str, seed: int, device: str) -> Outcome:
    """The program's outcome on a fresh device of this configuration, in a child that has not used CUDA before.

    `allocator` is "native", "spillway", which is its full integration, or "plain".
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        choose_device(seed, device)
        outcome = Outcome()
        try:
            if allocator != "native":
                spillway.install("plain" if allocator == "plain" else "full")
            if ON_GPU:
                program(outcome)
                torch.cuda.synchronize()
            else:
                sim.touch_operands()
                program(outcome)
                torch.cuda.synchronize()
                outcome.reports = sim.reports()
                outcome.touched = sim.touched()
        except BaseException:
            outcome.failure = traceback.format_exc()
        with os.fdopen(theirs, "wb") as out:
            pickle.dump(outcome, out)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        data = answer.read()
    os.waitpid(child, 0)
    outcome = pickle.loads(data) if data else Outcome(failure="the process died")
    assert isinstance(outcome, Outcome)
    return outcome


def choose_device(seed: int, device: str) -> None:
    if not ON_GPU:
        os.environ["SPILLWAY_SIM"] = f"completion:late,seed:{seed},{device}"
    elif capacity := re.search(r"capacity:(\w+)", device):
        given = os.environ.get("SPILLWAY_CONF")
        os.environ["SPILLWAY_CONF"] = ",".join([*([given] if given else []), f"limit:{capacity[1]}"])


def free_bytes() -> int:
    """What Spillway could still take of the device, within its limit."""
    return int(min(get_limit(0) - torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]))


def check_counters() -> None:
    stats = torch.cuda.memory_stats()  # of one moment: blocks come back while a program looks
    now = {name: stats[f"{name}_bytes.all.current"] for name in COUNTERS}
    assert now["requested"] <= now["active"] <= now["reserved"] and now["allocated"] <= now["active"], now
    if spillway.installed():
        check(library().spw_validate(0))
