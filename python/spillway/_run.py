"""What `spillway run` and `spillway dryrun` do inside each Python process, once PyTorch is imported."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import ctypes
import faulthandler
import functools
import json
import os
import pickle
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TextIO

from ._absent_ranks import stand_in
from ._compiled import prepare as prepare_compiled_code
from ._compiled import without_compiler
from ._errors import SpillwayError
from ._holders import Holders
from ._meeting import meet
from ._pytorch.after_import import after_import
from ._pytorch.install import install
from ._ranks import watch_launcher
from ._values import Values
from ._without_cudnn import prepare as prepare_without_cudnn


def serve(torch: Any, mode: str, results: str | None) -> None:
    """`mode` names the integration ("full", "plain", "native" for none), `results` the folder of a dryrun.

    What Spillway cannot do ends the process, in one line.
    """
    if torch.version.cuda is None:
        print(f"spillway: PyTorch {torch.__version__} has no CUDA: nothing to serve", file=sys.stderr)
        return
    try:
        if mode != "native":
            install("plain" if mode == "plain" else "full")
    except SpillwayError as problem:
        print(f"spillway: {problem}", file=sys.stderr)
        raise SystemExit(1) from None
    if results is not None:
        _prepare_dryrun(torch, Path(results))


def _prepare_dryrun(torch: Any, folder: Path) -> None:
    """On the simulated device: what it cannot do is switched off, values are computed, what happens is written down."""
    prepare_without_cudnn(torch)
    # As of 2.15 PyTorch's expandable segments ask NVML, which is not simulated, unless they are to stay in the process.
    os.environ.setdefault("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC", "0")
    values = Values(torch, os.environ.get("SPILLWAY_DRYRUN_VALUES", "none"), lambda frame: _is_own(torch, frame))
    try:
        values.start()
    except SpillwayError as problem:
        print(f"spillway: {problem}; dryrun goes on as with --values none", file=sys.stderr)
    prepare_compiled_code(torch, values.forget if values.observer is not None else None)
    watch = Watch(torch, folder, values, Holders(torch, functools.partial(_is_programs, torch)))
    watch.start()
    meet(torch, lambda file: _is_programs(torch, file), watch.end)
    if "RANK" not in os.environ:
        devices = int(os.environ.get("SPILLWAY_DRYRUN_DEVICES") or 1)
        after_import("torch.distributed.launcher.api", lambda api: watch_launcher(api, devices))
    elif "SPILLWAY_DRYRUN_RANKS" in os.environ:
        stand_in(torch)


class Watch:
    """Tells the folder what the process, and those that it forks, use of the devices: in one file each.

    A process that has PyTorch and does not use CUDA leaves a file without devices. One that uses CUDA leaves a file
    that is not complete, and completes it when it ends, by whatever end Python knows of or by a signal that asks it to
    end; who is killed does not.
    """

    def __init__(self, torch: Any, folder: Path, values: Values, holders: Holders) -> None:
        self.torch = torch
        self.values = values
        self.holders = holders
        self.folder = folder
        self.result: dict[str, Any] = {}
        self.peaks: dict[int, dict[str, int]] = {}  # of each device, before the program began them anew
        self.process_id: int | None = None  # while this one uses CUDA
        self.is_ending = threading.Lock()  # of the main thread and of one that tells before a signal ends the process
        self.file = ""
        named = os.environ.get("SPILLWAY_DRYRUN_SNAPSHOTS")
        self.snapshots = Path(named) if named else None
        self.crash: TextIO | None = None

    def start(self) -> None:
        self._write({"complete": True, "devices": []})
        note_peaks(self.torch, self.peaks)
        note_refusals(self.torch, self.result, self.holders.mark)
        note_end(self.torch, self.result)
        self.holders.start()
        self.torch.cuda._lazy_call(self._begin)  # a child of fork has it as well
        atexit.register(self._end_of_interpreter)
        leave = os._exit

        def end_and_leave(status: int) -> NoReturn:
            """Children of fork, those of multiprocessing among them, run nothing of atexit."""
            try:
                self.end()
            finally:
                leave(status)

        os._exit = end_and_leave

    def _begin(self) -> None:
        self.process_id = os.getpid()
        self.file = self._write({"rank": _rank(), "complete": False, "devices": []})
        try:
            self.holders.begin(keeps_history=self.snapshots is not None)
        except (SpillwayError, RuntimeError) as problem:
            reason = str(problem).splitlines()[0]
            print(f"spillway: {reason}; dryrun does not say which lines hold memory", file=sys.stderr)
        self._watch_crashes()
        self.is_ending = threading.Lock()
        self.holders.tell_before_ending(self.tell)

    def _watch_crashes(self) -> None:
        """Where Python was when a signal ended it is written beside the result."""
        self.crash = Path(self.file).with_suffix(".crash").open("w")  # it stays open to the end
        if not faulthandler.is_enabled():
            faulthandler.enable(self.crash)
            self.holders.say_crashes(self.crash.fileno())

    def end(self) -> list[int]:
        """The devices that were used. Nothing is watched any more."""
        if self.process_id != os.getpid():
            return []
        devices = self.tell()
        self.holders.forget()
        return devices

    def tell(self) -> list[int]:
        """The same, of a process that goes on until it ends at once."""
        if self.process_id != os.getpid():
            return []
        with self.is_ending, without_compiler(self.torch):
            return self._tell() if self.process_id is not None else []

    def _tell(self) -> list[int]:
        self.process_id = None
        torch = self.torch
        settle(torch, self.result)
        self.holders.mark()
        rows = [_highest(_device(torch, each), self.peaks.get(each)) for each in range(torch.cuda.device_count())]
        devices: list[dict[str, Any]] = [row for row in rows if row["peak_reserved_bytes"] > 0 or row["num_ooms"] > 0]
        for row in devices:
            row["peak"] = self.holders.peak(row["device"])
        allocator = str(torch.cuda.get_allocator_backend())
        result = {"rank": _rank(), "complete": True, "allocator": allocator, "devices": devices}
        result |= {**self.values.result(), **self.result}
        if self.snapshots is not None:
            result["snapshot"] = self._snapshot(self.snapshots)
        self._write(result, self.file)
        return [row["device"] for row in devices]

    def _end_of_interpreter(self) -> None:
        is_interrupted = self.result.get("exception") == "KeyboardInterrupt"
        with uninterrupted():
            finish_backward_passes(self.torch, self.end())
        if is_interrupted:
            # Python ends itself by SIGINT where the last code that was run from text was interrupted, and what is
            # imported here may have run some.
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    def _snapshot(self, folder: Path) -> str:
        file = folder / f"{os.getpid()}.pickle"
        file.write_bytes(pickle.dumps(self.torch.cuda.memory._snapshot()))
        return str(file)

    def _write(self, result: dict[str, Any], file: str = "") -> str:
        if not file:
            handle, file = tempfile.mkstemp(dir=self.folder, suffix=".json")
            os.close(handle)
        Path(file).write_text(json.dumps({"process_id": os.getpid(), **result}))
        return file


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """In the main thread, by none of the further SIGINTs of a terminal's key or of who sends them to a whole group."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


# Lines at which memory was refused, in a result.
MOST_REFUSALS = 20


class _Mark:
    pass


_mark_of_pass: contextvars.ContextVar[_Mark | None] = contextvars.ContextVar("spillway_mark_of_pass", default=None)


def finish_backward_passes(torch: Any, devices: list[int], seconds: float = 1) -> None:
    """Waits until PyTorch's threads for backward passes hold nothing of Python's: for so long at most, once what they
    have to do is done.

    As of 2.15 a pass carries a copy of Python's context, and the thread of its device may drop that after the program
    went on. A thread that asks for the interpreter while that ends is ended by it, here in the middle of a destructor:
    "terminate called without an active exception", exit code 134. A thread takes one pass after the other, so once it
    dropped the context of a last one, it has none.
    """

    def run(device: int, mark: _Mark) -> None:
        _mark_of_pass.set(mark)
        with torch.inference_mode(False), torch.enable_grad():
            torch.ones((), device=torch.device("cuda", device), requires_grad=True).backward()

    deadline = time.monotonic() + seconds
    for device in devices:
        mark = _Mark()
        is_held = weakref.ref(mark)
        try:
            contextvars.copy_context().run(run, device, mark)
        except RuntimeError:  # no memory is left for it, or the device is broken
            continue
        del mark
        while is_held() is not None and time.monotonic() < deadline:
            time.sleep(0.0002)


def note_peaks(torch: Any, peaks: dict[int, dict[str, int]]) -> None:
    """A program that begins its peaks anew, as for each step, has the highest of all in its result."""

    def noting(reset: Any) -> Any:
        def note_and_reset(device: int) -> Any:
            if torch.cuda.is_initialized():
                peaks[device] = _highest(_device(torch, device), peaks.get(device))
            return reset(device)

        return note_and_reset

    for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
        if hasattr(torch._C, name):
            setattr(torch._C, name, noting(getattr(torch._C, name)))


def _highest(row: dict[str, int], before: dict[str, int] | None) -> dict[str, int]:
    return row if before is None else {name: max(value, before[name]) for name, value in row.items()}


def note_refusals(torch: Any, result: dict[str, Any], mark: Callable[[], None]) -> None:
    """Where memory was refused and how much, and where last, for processes that end without an exception that anybody
    sees."""
    rows: dict[str, dict[str, Any]] = {}

    def refused(device: int, size: int, *_: int) -> None:
        stack = traceback.extract_stack()[:-1]
        if not any(_is_own(torch, frame) for frame in stack):  # PyTorch's own thread, as in a backward pass
            stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])
        mark()  # what is live now is gone when the program ends
        where = _where(torch, stack)
        if where in rows or len(rows) < MOST_REFUSALS:
            row = rows.setdefault(where, {"where": where, "device": device, "bytes": 0, "times": 0})
            row |= {"bytes": max(row["bytes"], size), "times": row["times"] + 1}
        result["refusals"] = list(rows.values())
        result["refused"] = {"where": where, "device": device, "blocks": _blocks(torch, device)}

    torch.cuda._lazy_call(lambda: torch._C._cuda_attach_out_of_memory_observer(refused))


def note_end(torch: Any, result: dict[str, Any]) -> None:
    before = sys.excepthook

    def note_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        result["exception"] = kind.__name__
        for cause in causes(error):
            if isinstance(cause, torch.OutOfMemoryError):
                frames = [*traceback.extract_tb(trace), *traceback.extract_tb(cause.__traceback__)]
                result["oom"] = {"where": _where(torch, frames), "text": str(cause)}
            elif "CUDA error" in str(cause) and (misuse := _last_misuse()):
                frames = [*traceback.extract_tb(trace), *traceback.extract_tb(cause.__traceback__)]
                result["misuse"] = {"where": _where(torch, frames), "text": misuse}
        before(kind, error, trace)

    sys.excepthook = note_exception


def _last_misuse() -> str:
    """What the simulated driver has to say of the last call that it refused in this thread, beside its code."""
    last = ctypes.CDLL("libcuda.so.1").spwSimLastError
    last.restype = ctypes.c_char_p
    return str(last().decode(errors="replace"))


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, and what it was raised for, during, or as a group of, however far back."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__context__, one.__cause__, *getattr(one, "exceptions", ())]


def settle(torch: Any, result: dict[str, Any]) -> None:
    """Whether a refusal was the end: nothing was allocated after it, and no other exception is known."""
    refused = result.pop("refused", None)
    exception = result.pop("exception", None)
    if refused is None:
        return
    if exception is None and _blocks(torch, refused["device"]) == refused["blocks"]:
        result["oom"] = {"where": refused["where"], "text": ""}
    if "oom" in result:
        result["oom"]["refused_at"] = refused["where"]


def _blocks(torch: Any, device: int) -> int:
    return int(torch.cuda.memory_stats(device).get("allocation.all.allocated", 0))


def _device(torch: Any, device: int) -> dict[str, int]:
    stats = torch.cuda.memory_stats(device)
    return {
        "device": device,
        # A device that was not used yet has no statistics.
        "peak_allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
        "peak_requested_bytes": stats.get("requested_bytes.all.peak", 0),
        "peak_reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
        "num_ooms": stats.get("num_ooms", 0),
    }


def _rank() -> int:
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0


def _is_own(torch: Any, frame: traceback.FrameSummary) -> bool:
    """Of the program, not of PyTorch, what that compiles, Python or Spillway."""
    return _is_programs(torch, frame.filename)


@functools.cache
def _is_programs(torch: Any, file: str) -> bool:
    packages = sysconfig.get_paths()["purelib"]  # on some installations below the standard library
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or "<frozen "
    others = (str(torch.__path__[0]), str(Path(__file__).parent), compiled, "<frozen ")
    is_standard = file.startswith(sysconfig.get_paths()["stdlib"]) and not file.startswith(packages)
    return not is_standard and not file.startswith(others)


def _where(torch: Any, frames: list[traceback.FrameSummary]) -> str:
    """The program's line."""
    own = [frame for frame in frames if _is_own(torch, frame)] or list(frames)
    if not own:
        return "an unknown line"
    text = f": {own[-1].line}" if own[-1].line else ""  # of python -c and the like there is none
    return f"{own[-1].filename}:{own[-1].lineno}{text}"
