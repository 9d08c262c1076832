"""`spillway trace-model`: the memory of a model's training step, from its own code.

python -m spillway._trace_model FUNCTION --trace FILE --summary FILE [--tensors fake|device] [--steps N] [--strict]
    [--world-size N --rank R --devices D]

FUNCTION makes the model, its optimizer and its data on "cuda" and returns a function that does one step. Needs the
simulated CUDA driver in the process, which the command brings; the program prints on stderr. Exit code 1: said on
stderr. Exit code 3: fake tensors cannot show it, for the reason that is written to the file --refusal; --because is
that reason, for the run on the device. Which rank of a job it is there, the environment says.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

try:
    import torch
except ImportError as problem:
    sys.exit(f"spillway trace-model: {sys.executable} has no PyTorch ({problem}); SPILLWAY_PYTHON names another Python")
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .._errors import SpillwayError
from .device_trace import DeviceTrace
from .fake_trace import Recorder
from .guards import UntraceableError, free_memory_tells, guarded, optimizers_tell
from .process_groups import Rank
from .recording import Recording, is_library
from .summary import summary, write_trace

# Real bytes: FakeTensor keeps the values of scalars that the program names.
MOST_PAST_THE_TRACE = 64 << 10
REFUSED = 3


class WrongFunctionError(SpillwayError):
    """It is not there, or does not return a step."""


def trace_fake(options: argparse.Namespace) -> Recording:
    """Runs the steps on fake tensors. Errors: SpillwayError, one line that says what cannot be traced and where."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
    recorder = Recorder(options.bound)
    rank = Rank(options.rank, options.world_size, options.devices) if options.world_size else None
    if rank is not None:
        os.environ.update(rank.environment())
    try:
        with mode, recorder, guarded(mode, recorder, options.refusal is None, rank):
            recorder.calibrate()
            torch.cuda.reset_peak_memory_stats()
            before = _allocated_at_most()  # PyTorch's own, with the first fake tensors
            step = _made_step(options.function)
            for number in range(1, options.steps + 1):
                recorder.begin(number, "forward")
                step()
                _collect(recorder)
    except WrongFunctionError:
        raise
    except SystemExit as end:
        raise _ended(end) from None
    except SpillwayError as problem:
        raise UntraceableError(f"{problem}{_where(problem)}") from problem
    except Exception as problem:
        raise UntraceableError(f"{_reason(problem)}{_where(problem)}") from problem
    past = _allocated_at_most() - before
    if past > MOST_PAST_THE_TRACE:
        raise UntraceableError(
            f"{past} bytes of the device were allocated past the trace, perhaps by a thread of the program's own "
            "or by an extension in C++: the trace would be too small"
        )
    return recorder


def trace_on_device(function: str, steps: int) -> Recording:
    """Runs the steps on the simulated device. Errors: SpillwayError."""
    trace = DeviceTrace()
    try:
        with trace.watched(), optimizers_tell(trace), free_memory_tells(trace):
            step = _made_step(function)
            for number in range(1, steps + 1):
                trace.begin(number, "forward")
                step()
            torch.cuda.synchronize()
            return trace.recording()
    except SystemExit as end:
        raise _ended(end) from None
    except SpillwayError:
        raise
    except Exception as problem:
        first = (str(problem).strip().splitlines() or [""])[0]
        hint = "; --world-size N makes it a rank of a job" if "environment variable RANK" in first else ""
        raise SpillwayError(
            f"the program failed on the simulated device: {type(problem).__name__}: {first}{_where(problem)}{hint}"
        ) from problem


def _ended(end: SystemExit) -> SpillwayError:
    code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    return WrongFunctionError(f"the program ended with code {code} before its steps were done")


def _imported(module: str) -> Any:
    """A module by its name, or by its file, whose folder is looked in first, as where Python runs the file."""
    file = Path(module)
    if file.suffix != ".py":
        return importlib.import_module(module)
    if not file.is_file():
        raise WrongFunctionError(f"{module}: no such file; allowed: FILE.py:function or package.module:function")
    sys.path.insert(0, str(file.resolve().parent))
    return importlib.import_module(file.stem)


def _made_step(function: str) -> Callable[[], Any]:
    module, _, name = function.rpartition(":")
    make: Any = _imported(module)
    for part in name.split("."):
        if not hasattr(make, part):
            raise WrongFunctionError(f"{module} has no {name}")
        make = getattr(make, part)
    step = make()
    if not callable(step):
        raise WrongFunctionError(f"{function} returned {type(step).__name__}; wanted: a function that does one step")
    return step  # type: ignore[no-any-return]


def _collect(recorder: Recorder) -> None:
    """Between two steps: what only Python's collector frees is held longer on a device, and nobody knows how long."""
    before = sum(recorder.live_bytes.values())
    gc.collect()
    freed = before - sum(recorder.live_bytes.values())
    if freed > 0:
        recorder.find(
            "reference-cycle",
            "tensors were held by reference cycles until Python's collector ran, here after each step",
            f"{freed} bytes after step {recorder.step}",
        )


def _allocated_at_most() -> int:
    """Bytes of real memory on the simulated device."""
    return max(
        int(torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["peak"])
        for device in range(torch.cuda.device_count())
    )


def _reason(problem: Exception) -> str:
    """One line."""
    operator = getattr(problem, "func", None)
    if isinstance(problem, fake_tensor.DynamicOutputShapeException):
        return f"{operator} cannot be traced: the size of its result depends on values"
    if isinstance(problem, fake_tensor.DataDependentOutputException):
        return f"{operator} cannot be traced: its result depends on values"
    if isinstance(problem, fake_tensor.UnsupportedOperatorException):
        return f"{operator} cannot be traced: it has no fake implementation (register_fake gives it one)"
    first = (str(problem).strip().splitlines() or [""])[0]
    return f"the program failed on fake tensors: {type(problem).__name__}: {first}"


def _where(problem: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if not is_library(frame.filename)]
    return f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _findings(recording: Recording) -> str:
    return "; ".join(f"{each.text} ({', '.join(each.counts)})" for each in recording.findings.values())


def _complain(text: str) -> NoReturn:
    sys.stdout.flush()  # the program's words come first, and this last
    print(f"spillway trace-model: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(1)


def _recorded(options: argparse.Namespace) -> Recording:
    if not torch.cuda.is_available():
        raise WrongFunctionError("there is no simulated device: start it as `spillway trace-model`")
    on_device = options.tensors == "device"
    recording = trace_on_device(options.function, options.steps) if on_device else trace_fake(options)
    if not recording.events:
        raise WrongFunctionError("nothing was allocated on the device")
    if options.strict and recording.findings:
        raise WrongFunctionError(_findings(recording))
    return recording


def main() -> None:
    parser = argparse.ArgumentParser(prog="spillway trace-model")
    parser.add_argument("function")
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--tensors", choices=("fake", "device"), default="fake")
    parser.add_argument("--refusal", type=Path)
    parser.add_argument("--because")
    parser.add_argument("--bound", type=float)
    parser.add_argument("--steps", type=int, default=2)
    for job, least in (("--world-size", 0), ("--rank", 0), ("--devices", 1)):
        parser.add_argument(job, type=int, default=least)
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    os.dup2(2, 1)  # the answer alone is for stdout
    sys.path.insert(0, os.getcwd())
    try:
        recording = _recorded(options)
        write_trace(recording, options.trace)
    except UntraceableError as problem:
        if options.refusal is None:
            _complain(str(problem))
        options.refusal.write_text(str(problem), encoding="utf-8", errors="backslashreplace")
        sys.exit(REFUSED)
    except (SpillwayError, OSError) as problem:
        _complain(str(problem) + (f"; on fake tensors: {options.because}" if options.because else ""))
    asked = {"function": options.function, "steps": options.steps, "tensors": options.tensors}
    answer = {**asked, "because": options.because, **summary(recording)}
    try:
        options.summary.write_text(json.dumps(answer))
    except OSError as problem:
        _complain(str(problem))


if __name__ == "__main__":
    main()
