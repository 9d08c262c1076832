"""What a case of the conformance table is, and how it is run: in a process and on a simulated device of its own.

A case is a function that uses PyTorch as a user would. It returns where PyTorch does what is documented or wanted, and
fails an assertion where it does something else. An exception of PyTorch or of the allocator is a refusal, in its words.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulated import MIB, collect, start

torch: Any = importlib.import_module("torch")

COLUMNS = ("native", "RMM", "plain", "full")
WORKS, REFUSES, WRONG, NOT_APPLICABLE = "works", "refuses", "wrong", "not applicable"
CAPACITY_BYTES = 1 << 30

Body = Callable[[], None]
Register = Callable[[Body], Body]


class NotApplicableError(Exception):
    """There is nothing to find here; the text says why."""


@dataclass(frozen=True)
class Case:
    name: str
    asks: str  # in a few words what is to work; empty for a function, whose name says it
    body: Body
    device: str  # more of SPILLWAY_SIM
    setting: str = ""  # SPILLWAY_CONF under which full answers it, where full does not by default


@dataclass(frozen=True)
class Finding:
    kind: str
    words: str = ""


FUNCTIONS: dict[str, Case] = {}
COMPLAINTS: dict[str, Case] = {}


def function(*names: str) -> Register:
    def register(body: Body) -> Body:
        FUNCTIONS.update({name: Case(name, "", body, "") for name in names})
        return body

    return register


def complaint(name: str, asks: str, device: str = "", setting: str = "") -> Register:
    def register(body: Body) -> Body:
        COMPLAINTS[name] = Case(name, asks, body, device, setting)
        return body

    return register


def find(case: Case, column: str, rmm: str | None = None, setting: str = "") -> Finding:
    """rmm: the folder of RMM's packages. setting: a SPILLWAY_CONF."""

    def program() -> Finding:
        try:
            if column == "RMM":
                importlib.import_module("rmm_column").install(rmm)
            case.body()
            torch.cuda.synchronize()
        except NotApplicableError as reason:
            return Finding(NOT_APPLICABLE, str(reason))
        except AssertionError as problem:
            return Finding(WRONG, first_line(problem))
        except Exception as refusal:
            return Finding(REFUSES, f"{type(refusal).__name__}: {first_line(refusal)}")
        return Finding(WORKS)

    allocator = column if column in ("plain", "full") else "native"
    device = f"capacity:{CAPACITY_BYTES}B{',' if case.device else ''}{case.device}"
    (outcome,) = collect([start(program, allocator, {"SPILLWAY_SIM": device, "SPILLWAY_CONF": setting})])
    if isinstance(outcome.value, Finding):
        return outcome.value
    return Finding(WRONG, outcome.failure.strip().splitlines()[-1])


def first_line(problem: BaseException) -> str:
    return (str(problem).splitlines() or [""])[0]


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


# ---- What cases share


def mebibytes(count: int) -> Any:
    return torch.empty(count * MIB, dtype=torch.uint8, device="cuda")


def driver() -> ctypes.CDLL:
    """The simulated driver, for what a program cannot see."""
    loaded = ctypes.CDLL("libcuda.so.1")
    loaded.spwSimCalls.restype = ctypes.c_uint64
    loaded.spwSimHostWaits.restype = ctypes.c_uint64
    loaded.spwSimMark.restype = ctypes.c_uint64
    loaded.spwSimMark.argtypes = [ctypes.c_void_p]
    loaded.spwSimIsComplete.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    loaded.spwSimCompleteTo.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    return loaded


def used_on(stream: Any, block: Any) -> None:
    """Work on another stream uses the block, and PyTorch is told."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        block.zero_()
    block.record_stream(stream)


def is_worse(finding: Finding, than: Finding) -> bool:
    return than.kind == WORKS and finding.kind in (REFUSES, WRONG)
