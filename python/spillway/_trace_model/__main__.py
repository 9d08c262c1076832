"""`spillway trace-model`: the memory of a model's training step, from its own code on fake tensors.

python -m spillway._trace_model PACKAGE.MODULE:FUNCTION --trace FILE --summary FILE [--steps N] [--strict]

FUNCTION makes the model, its optimizer and its data on "cuda" and returns a function that does one step. Needs the
simulated CUDA driver in the process, which the command brings; the program prints on stderr.
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
from .fake_trace import Recorder, is_library
from .guards import UntraceableError, guarded
from .summary import summary, write_trace

# Real bytes: FakeTensor keeps the values of scalars that the program names.
MOST_PAST_THE_TRACE = 64 << 10


def trace(function: str, steps: int) -> Recorder:
    """Runs the steps. Errors: SpillwayError, one line that says what cannot be traced and where."""
    if not torch.cuda.is_available():
        raise SpillwayError("there is no simulated device: start it as `spillway trace-model`")
    mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
    recorder = Recorder()
    try:
        with mode, recorder, guarded(mode, recorder):
            recorder.calibrate()
            torch.cuda.reset_peak_memory_stats()
            before = _allocated_at_most()  # PyTorch's own, with the first fake tensors
            step = _made_step(function)
            for number in range(1, steps + 1):
                recorder.begin(number, "forward")
                step()
                _collect(recorder)
    except SpillwayError as problem:
        raise SpillwayError(f"{problem}{_where(problem)}") from problem
    except Exception as problem:
        raise SpillwayError(f"{_reason(problem)}{_where(problem)}") from problem
    past = _allocated_at_most() - before
    if past > MOST_PAST_THE_TRACE:
        raise SpillwayError(
            f"{past} bytes of the device were allocated past the trace, perhaps by a thread of the program's own "
            "or by an extension in C++: the trace would be too small"
        )
    return recorder


def _imported(module: str) -> Any:
    """A module by its name, or by its file, whose folder is looked in first, as where Python runs the file."""
    file = Path(module)
    if file.suffix != ".py":
        return importlib.import_module(module)
    if not file.is_file():
        raise SpillwayError(f"{module}: no such file; allowed: FILE.py:function or package.module:function")
    sys.path.insert(0, str(file.resolve().parent))
    return importlib.import_module(file.stem)


def _made_step(function: str) -> Callable[[], Any]:
    module, _, name = function.rpartition(":")
    make: Any = _imported(module)
    for part in name.split("."):
        if not hasattr(make, part):
            raise SpillwayError(f"{module} has no {name}")
        make = getattr(make, part)
    step = make()
    if not callable(step):
        raise SpillwayError(f"{function} returned {type(step).__name__}; wanted: a function that does one step")
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
            f"{freed} bytes after step {recorder.phases[-1].step}",
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


def _findings(recorder: Recorder) -> str:
    return "; ".join(f"{each.text} ({', '.join(each.counts)})" for each in recorder.findings.values())


def _complain(text: str) -> NoReturn:
    sys.stdout.flush()  # the program's words come first, and this last
    print(f"spillway trace-model: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="spillway trace-model")
    parser.add_argument("function")
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    os.dup2(2, 1)  # the answer alone is for stdout
    sys.path.insert(0, os.getcwd())
    try:
        recorder = trace(options.function, options.steps)
        if not recorder.events:
            raise UntraceableError("nothing was allocated on the device")
        if options.strict and recorder.findings:
            raise UntraceableError(_findings(recorder))
        write_trace(recorder, options.trace)
    except SpillwayError as problem:
        _complain(str(problem))
    answer = {"function": options.function, "steps": options.steps, **summary(recorder)}
    options.summary.write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
