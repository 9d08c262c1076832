"""Values on the simulated device: operators that are cheap to compute are computed on the host, on its bytes."""

from __future__ import annotations

import atexit
import ctypes
import linecache
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from ._errors import SpillwayError
from ._library import HERE, part
from ._pytorch import build

CHOICES = ("none", "small", "all")
_ReportRead = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int64)
_ReportFailure = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
MOST_FAILURES = 20
# Lines that look at unreal values so often each, one soon after the other, with no look of another line between, are
# taken for a loop that waits, and one of them is given another answer. That is more often than a program that is tried
# makes steps, and soon over. Fewer looks are enough where these lines are known to wait: what ends one loop may be what
# keeps the next one going.
LOOKS_OF_A_LOOP = 10_000
LOOKS_OF_A_KNOWN_LOOP = 100
MOST_LINES_OF_A_LOOP = 4
SOON = 4 * MOST_LINES_OF_A_LOOP  # looks
COMPILERS = ("/torch/_dynamo/guards.py", "/torch/_inductor/runtime/")
Line = tuple[str, int]  # file, number
_started: list[Values] = []  # the observer calls them to the end


class Waits:
    """Loops that wait for a value that nobody computes, with up to `MOST_LINES_OF_A_LOOP` lines that look."""

    def __init__(self) -> None:
        self.now = 0
        self.last: dict[Line, int] = {}  # when each line looked
        self.looks: dict[Line, int] = {}  # how often each one did since a line came that had not looked soon before
        self.turns: dict[frozenset[Line], int] = {}  # how often a line of a loop got another answer
        self.negated: set[Line] = set()  # lines that are given the opposite of the value that is there

    def look(self, line: Line) -> Line | None:
        """The line of a loop that is given another answer from now on, if it is time."""
        self.now += 1
        if not self._is_recent(line):
            self.last = {each: when for each, when in self.last.items() if self._is_recent(each)}
            self.looks = {}
        self.last[line] = self.now
        self.looks[line] = self.looks.get(line, 0) + 1
        loop = frozenset(each for each in self.last if self._is_recent(each))
        needed = LOOKS_OF_A_KNOWN_LOOP if any(loop <= known for known in self.turns) else LOOKS_OF_A_LOOP
        if len(loop) > MOST_LINES_OF_A_LOOP or min(self.looks.get(each, 0) for each in loop) < needed:
            return None
        self.looks = {}
        turn = self.turns[loop] = self.turns.get(loop, 0) + 1
        # A Gray code: every combination of answers has its turn, and each differs from the one before in one line.
        changed = sorted(loop)[min((turn & -turn).bit_length(), len(loop)) - 1]
        self.negated ^= {changed}
        return changed

    def _is_recent(self, line: Line) -> bool:
        return line in self.last and self.now - self.last[line] <= SOON


class Values:
    """Of one process: what was computed, and where the program looked at what is not real."""

    def __init__(
        self, torch: Any, chosen: str, is_own: Callable[[traceback.FrameSummary], bool] = lambda _: True
    ) -> None:
        self.torch = torch
        self.chosen = chosen
        self.is_own = is_own
        self.reads: dict[Line, dict[str, Any]] = {}
        self.waits = Waits()
        self.failures: dict[str, str] = {}
        self.observer: ctypes.CDLL | None = None
        self.callbacks = (_ReportRead(self._note_read), _ReportFailure(self._note_failure))

    def start(self) -> None:
        """Errors: SpillwayError, where the observer cannot be compiled or the driver is not the simulated one."""
        if self.chosen == "none":
            return
        self.observer = ctypes.CDLL(str(self._compiled()))
        begin = self.observer.spillway_values_start
        begin.restype = ctypes.c_char_p
        problem = begin(int(self.chosen == "all"), *self.callbacks)
        if problem is not None:
            raise SpillwayError(f"values are not computed: {problem.decode()}")
        collectives = ctypes.CDLL("libspillway_nccl.so.0")
        collectives.spwNcclSetReality(self.observer.spillway_values_is_real, self.observer.spillway_values_set_real)
        atexit.register(self.observer.spillway_values_end_reports)
        _started.append(self)

    def forget(self, pointer: int, size: int) -> None:
        """What is there on the device is not real from now on."""
        assert self.observer is not None
        self.observer.spillway_values_set_real(ctypes.c_uint64(pointer), ctypes.c_uint64(size), 0)

    def result(self) -> dict[str, Any]:
        totals = (ctypes.c_uint64 * 3)()
        if self.observer is not None:
            self.observer.spillway_values_totals(totals)
        return {
            "values": self.chosen if self.observer is not None else "none",
            "operators_computed": totals[0],
            "operators_too_large": totals[1],
            "operators_failed": self.failures,
            "unreal_reads": [*self.reads.values()],
        }

    def _compiled(self) -> Any:
        name = "sim/cuda/sim_control.h"
        header = part(f"include/{name}", name)
        headers = [header, HERE / "_operands" / "tensors.h"]
        return build.compiled(self.torch, "spillway_values", HERE / "_host_values", header.parents[2], headers)

    def _note_read(self, operator: bytes, size: int) -> int:
        """Whether the program is to find another value there than it does."""
        if _is_compilers():
            return 0
        line = self._line()
        known = self.reads.get(line)
        if known is None:
            where = f"{line[0]}:{line[1]}: {linecache.getline(*line).strip()}"
            known = self.reads[line] = {"where": where, "operator": operator.decode(), "bytes": size, "times": 0}
        known["times"] += 1
        changed = self.waits.look(line)
        if changed is not None:
            self.reads[changed]["loops_ended"] = self.reads[changed].get("loops_ended", 0) + 1
        return int(line in self.waits.negated)

    def _line(self) -> Line:
        """The program's, of this thread or, where none of its lines is in this one, of the main thread."""
        # Nothing here may refer to this call's own frame: that would keep all that the program's calls hold.
        stacks: list[FrameType | None] = [sys._getframe(1)]
        if threading.current_thread() is not threading.main_thread():
            stacks.append(sys._current_frames().get(threading.main_thread().ident or 0))
        first: FrameType | None = None
        for frame in stacks:
            first = frame
            while frame is not None:
                if self.is_own(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, "", lookup_line=False)):
                    return frame.f_code.co_filename, frame.f_lineno
                frame = frame.f_back
        return (first.f_code.co_filename, first.f_lineno) if first is not None else ("an unknown line", 0)

    def _note_failure(self, operator: bytes, why: bytes) -> None:
        if len(self.failures) < MOST_FAILURES:
            self.failures.setdefault(operator.decode(), why.decode(errors="replace").splitlines()[0])


def _is_compilers() -> bool:
    """Dynamo prints what it compiles for, into guards, and Inductor copies what it times kernels on: no looks of the
    program's."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in COMPILERS):
            return True
        frame = frame.f_back
    return False
