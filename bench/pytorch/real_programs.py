#!/usr/bin/env python3
"""Programs of other people's libraries on PyTorch's own allocator, expandable segments and Spillway: a JSON line each.

    real_programs.py --output lines.jsonl                                   on the GPU of this machine, one at a time
    real_programs.py --output lines.jsonl --smallest detection graphs --parallel 6      their smallest limits
    real_programs.py --simulated --small                                    proves that they run
    real_programs_table.py lines.jsonl                                      what came of it, as tables in Markdown

Each run is a process of its own. It is forked from one that has imported the libraries and not used CUDA, so that the
imports are paid for once. A run that fails, hangs or crashes says so in its line, and the next one follows. Runs in
a parcel of scripts/prove as in a checkout, by a Python that has PyTorch and the libraries.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import hashlib
import importlib
import json
import math
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real_workloads import WORKLOADS, Given

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
ALLOCATORS = ("native", "expandable", "spillway")
SHARES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5)  # of the most that PyTorch's own allocator has allocated at once
SEED = 1
GIB = 1 << 30
DEVICE = "capacity:80GiB,races:off"
DEVICE_BYTES = 78 * GIB  # where no line says what the device has
BESIDE_BYTES = 3 * GIB // 2  # what a process takes besides its allocator
LEAST_SECONDS = 5.0  # with fewer left no run begins
# This is said where memory is short, by PyTorch and by the libraries that take theirs from it.
SHORT = ("out of memory", "ALLOC_FAILED", "Unable to find a valid cuDNN", "Unable to find an engine")
Line = dict[str, Any]


# ---- Inside of a run


class Steps:
    """Times of steps, and the driver's calls of both halves."""

    def __init__(self, torch: Any, count: int, is_spillway: bool) -> None:
        self.torch = torch
        self.count = count
        self.is_spillway = is_spillway
        self.milliseconds: list[float] = []
        self.values: list[Any] = []
        self.calls: list[dict[str, int]] = []
        self.began = 0.0

    def begin(self) -> None:
        if len(self.milliseconds) in (0, self.count // 2):
            self.calls.append(self._driver_calls())
        self.torch.cuda.synchronize()
        self.began = time.perf_counter()

    def end(self, value: Any) -> None:
        self.torch.cuda.synchronize()
        self.milliseconds.append((time.perf_counter() - self.began) * 1e3)
        if value is not None:
            self.values.append(value.detach().float().cpu())

    def _driver_calls(self) -> dict[str, int]:
        if not self.is_spillway:
            return {}
        from spillway._library import check, library  # where it serves

        with tempfile.NamedTemporaryFile() as file:
            check(library().spw_dump(file.name.encode(), b"json"))
            calls: dict[str, int] = json.loads(Path(file.name).read_text())["devices"][0]["stats"]["driver_calls"]
        return calls

    def times(self) -> Line:
        quarter = max(len(self.milliseconds) // 4, 1)
        first, rest = self.milliseconds[:quarter], self.milliseconds[quarter:]
        found: Line = {"steps": len(self.milliseconds)}
        for name, part in (("first", first), ("rest", rest)):
            if part:
                found[f"{name}_median_ms"] = round(statistics.median(part), 3)
                found[f"{name}_total_ms"] = round(sum(part), 1)
        return found

    def halves(self) -> Line:
        """Calls of the driver that were made, without those that were not."""
        if not self.is_spillway or len(self.calls) < 2:
            return {}
        marks = [*self.calls[:2], self._driver_calls()]
        first, last = (
            {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
            for before, after in zip(marks, marks[1:], strict=False)
        )
        return {"driver_calls_first_half": first, "driver_calls_last_half": last}


def memory(torch: Any) -> Line:
    stats = torch.cuda.memory_stats()
    return {
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "allocated_at_end_bytes": stats["allocated_bytes.all.current"],
        "reserved_at_end_bytes": stats["reserved_bytes.all.current"],
        "retries": stats.get("num_alloc_retries", 0),
        "device_bytes": torch.cuda.mem_get_info()[1],
    }


def compared(values: list[Any], steps: int) -> Line:
    """What says whether two allocators computed the same: all bits, and what is a number for each step."""
    flat = [float(each) for value in values if value.numel() <= steps for each in value.flatten()]
    return {
        "digest": hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()[:16],
        "losses": [float(f"{each:.6g}") if math.isfinite(each) else None for each in flat],
    }


def serve(torch: Any, allocator: str, simulated: bool) -> None:
    if allocator == "expandable":
        if simulated:
            os.environ["TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"] = "0"  # asks NVML, which is not simulated
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    elif allocator == "spillway":
        spillway: Any = importlib.import_module("spillway")
        spillway.install()
    if simulated:  # neither is
        torch.backends.cudnn.enabled = False
        torch.backends.cuda.enable_cudnn_sdp(False)
        importlib.import_module("spillway._values").Values(torch, "small").start()


def seeded(torch: Any) -> random.Random:
    random.seed(SEED)
    torch.manual_seed(SEED)
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy").random.seed(SEED)
    return random.Random(SEED)


def said_of(problem: BaseException | None) -> tuple[str, bool]:
    """In one line, and whether memory was short: leaving what failed may have raised another exception."""
    text, is_short, each = f"{type(problem).__name__}: {problem}", False, problem
    while each is not None:
        is_short = is_short or any(sign in str(each) for sign in SHORT)
        each = each.__cause__ or each.__context__
    return " ".join(text.split())[:400], is_short


def measured(job: Job, options: argparse.Namespace) -> Line:
    torch: Any = importlib.import_module("torch")
    warnings.simplefilter("ignore")
    serve(torch, job.allocator, options.simulated)
    workload = WORKLOADS[job.program]
    found: Line = {"backend": torch.cuda.get_allocator_backend()}
    rng = seeded(torch)
    if workload.exact:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS may answer otherwise from run to run
    torch.use_deterministic_algorithms(workload.exact, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    if job.limit:
        torch.cuda.set_per_process_memory_fraction(job.limit / torch.cuda.mem_get_info()[1])
    count = options.steps or (max(workload.steps // 4, 4) if options.small else workload.steps)
    steps = Steps(torch, count, job.allocator == "spillway")
    try:
        further = workload.run(Given(torch, rng, options.small, count, steps)) or []
        found.update(survived=True, exact=workload.exact)
        found.update(compared([*steps.values, *(each.detach().float().cpu() for each in further)], count))
        found.update(steps.halves())
    except Exception as problem:
        text, is_short = said_of(problem)
        found.update(survived=False, out_of_memory=is_short, error=text)
        print(traceback.format_exc(), file=sys.stderr)
    found.update(steps.times())
    with contextlib.suppress(Exception):  # the figures of a run that failed, where there are any
        found.update(memory(torch))
        segments = torch.cuda.memory._snapshot()["segments"] if job.allocator != "spillway" else []
        found["expandable_segments"] = any(segment.get("is_expandable") for segment in segments)
        found["device"] = torch.cuda.get_device_name(0)
    return found


def inside(job: Job, options: argparse.Namespace, file: Path) -> None:
    """Never returns."""
    begin = time.monotonic()
    try:
        found = measured(job, options)
    except BaseException as problem:
        text, _ = said_of(problem)
        found = {"survived": False, "error": text}
        print(traceback.format_exc(), file=sys.stderr)
    found["seconds"] = round(time.monotonic() - begin, 2)
    beside = file.with_suffix(".part")
    beside.write_text(json.dumps(found))
    beside.rename(file)
    sys.stderr.flush()
    os._exit(0)


# ---- Runs, from outside


@dataclass(frozen=True)
class Job:
    program: str
    allocator: str
    limit: int = 0  # of device memory in bytes; none where 0
    taken: int = 0  # at most, of the device

    def line(self) -> Line:
        return {"program": self.program, "allocator": self.allocator, **({"limit": self.limit} if self.limit else {})}


Task = Generator[Job, Line, None]  # asks for one run after the other, and is told what came of it


@dataclass
class Running:
    task: Task
    job: Job
    pid: int
    file: Path
    log: Path
    began: float = field(default_factory=time.monotonic)


class Runner:
    """Runs side by side what fits, from this one thread: what is forked has no locks of another."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.end = time.monotonic() + options.seconds
        self.number = 0
        self.running: list[Running] = []
        self.unimportable: dict[str, str] = {}
        self.imported: set[str] = set()
        self.failed = 0

    def emit(self, line: Line) -> None:
        text = json.dumps(line)
        print(text, flush=True)
        if self.options.output:
            with self.options.output.open("a") as file:
                file.write(text + "\n")
        self.failed += "error" in line

    def run(self, tasks: Iterable[Task], at_once: int, device_bytes: int) -> None:
        waiting: deque[tuple[Task, Job]] = deque()
        for task in tasks:
            self._advance(task, None, waiting)
        try:
            while waiting or self.running:
                while waiting and self._fits(waiting[0][1], at_once, device_bytes):
                    task, job = waiting.popleft()
                    if problem := self._cannot_start(job):
                        self._advance(task, {"survived": False, "error": problem}, waiting)
                    else:
                        self.running.append(self._start(task, job))
                for each in [*self.running]:
                    if (found := self._ended(each)) is not None:
                        self.running.remove(each)
                        self._advance(each.task, found, waiting)
                time.sleep(0.005)
        finally:
            for each in self.running:
                self._kill(each)
            self.running.clear()

    def _advance(self, task: Task, found: Line | None, waiting: deque[tuple[Task, Job]]) -> None:
        with contextlib.suppress(StopIteration):
            job = next(task) if found is None else task.send(found)
            # A search goes on before others begin.
            waiting.append((task, job)) if found is None else waiting.appendleft((task, job))

    def _fits(self, job: Job, at_once: int, device_bytes: int) -> bool:
        if not self.running:
            return True
        taken = sum(each.job.taken or device_bytes // at_once for each in self.running)
        return len(self.running) < at_once and taken + (job.taken or device_bytes // at_once) <= device_bytes

    def _cannot_start(self, job: Job) -> str:
        if self.end - time.monotonic() < LEAST_SECONDS:
            return "left out: the time of --seconds is over"
        if job.program not in self.imported and not self._imports_itself(job):
            self.imported.add(job.program)
            try:
                for name in ("torch", *WORKLOADS[job.program].modules):
                    importlib.import_module(name)
            except Exception as problem:
                self.unimportable[job.program] = said_of(problem)[0]
        return self.unimportable.get(job.program, "")

    def _imports_itself(self, job: Job) -> bool:
        return bool(self.options.fresh or WORKLOADS[job.program].imports_use_cuda)

    def _start(self, task: Task, job: Job) -> Running:
        self.number += 1
        stem = self.folder / f"{self.number}.{job.program}.{job.allocator}"
        file, log = stem.with_name(stem.name + ".json"), stem.with_name(stem.name + ".log")
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                self._inside(job, file, log)
            finally:
                os._exit(70)
        return Running(task, job, pid, file, log)

    def _inside(self, job: Job, file: Path, log: Path) -> None:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with log.open("wb") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        faulthandler.enable()
        if self._imports_itself(job) or not answers_after_fork():
            words = [sys.executable, __file__, f"--inside={job.program}:{job.allocator}:{job.limit}:{file}"]
            words += [f"--{name}" for name in ("small", "simulated") if getattr(self.options, name)]
            words += [f"--steps={self.options.steps}"] if self.options.steps else []
            os.execv(sys.executable, words)
        inside(job, self.options, file)

    def _ended(self, each: Running) -> Line | None:
        pid, status = os.waitpid(each.pid, os.WNOHANG)
        took = time.monotonic() - each.began
        if pid == 0:
            if took <= self.options.timeout and time.monotonic() <= self.end:
                return None
            self._kill(each)
            why = "its timeout" if took > self.options.timeout else "the end of --seconds"
            return {"survived": False, "error": f"ended at {why}, after {took:.0f} s", "said": tail(each.log)}
        self._kill(each, reaped=True)
        if each.file.exists():
            found: Line = json.loads(each.file.read_text())
            return {**found, "process_seconds": round(took, 2)}
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return {"survived": False, "error": f"died: {how}", "said": tail(each.log)}

    def _kill(self, each: Running, reaped: bool = False) -> None:
        """And all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(each.pid, signal.SIGKILL)
        if not reaped:
            os.waitpid(each.pid, 0)


def answers_after_fork() -> bool:
    """Not where an import has used the driver before the fork: this process needs one of its own then."""
    try:
        return int(ctypes.CDLL("libcuda.so.1").cuInit(0)) == 0
    except OSError:
        return True  # what is to come says it better


def tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace").strip()[-700:]
    except OSError:
        return ""


def once(runner: Runner, job: Job) -> Task:
    found = yield job
    runner.emit({**job.line(), **found})


def smallest(runner: Runner, program: str, allocator: str, peak: int) -> Task:
    """Of SHARES, found by halves: a limit that is survived is taken to mean that larger ones are."""
    low, high = 0, len(SHARES)
    tried: dict[str, Any] = {}
    line: Line = {"program": program, "allocator": allocator, "of_bytes": peak}
    while low < high:
        middle = (low + high) // 2
        limit = int(peak * SHARES[middle])
        found = yield Job(program, allocator, limit, limit + BESIDE_BYTES)
        tried[str(SHARES[middle])] = found.get("rest_total_ms") if found["survived"] else str(found.get("error"))[:80]
        if not found["survived"] and not found.get("out_of_memory"):
            runner.emit({**line, "tried": tried, "error": found.get("error"), "said": found.get("said", "")})
            return
        if found["survived"]:
            high = middle
        else:
            low = middle + 1
    runner.emit({**line, "smallest_share": SHARES[low] if low < len(SHARES) else None, "tried": tried})


def read_lines(file: Path | None) -> list[Line]:
    if file is None or not file.exists():
        return []
    return [json.loads(text) for text in file.read_text().splitlines() if text.strip()]


def native_peaks(lines: list[Line]) -> dict[str, int]:
    whole = (line for line in lines if line["allocator"] == "native" and line.get("survived") and "limit" not in line)
    return {line["program"]: line["peak_allocated_bytes"] for line in whole}


def search_all(runner: Runner, options: argparse.Namespace) -> None:
    """Smallest limits, after the peaks of those programs that the file of output does not know yet."""
    known = read_lines(options.output)
    kept: list[Line] = [*known]
    emit = runner.emit

    def keep(line: Line) -> None:
        kept.append(line)
        emit(line)

    runner.emit = keep  # type: ignore[method-assign]
    missing = [name for name in options.smallest if name not in native_peaks(known)]
    device_bytes = next((line["device_bytes"] for line in known if "device_bytes" in line), DEVICE_BYTES)
    runner.run([once(runner, Job(name, "native")) for name in missing], 1, device_bytes)
    runner.emit = emit  # type: ignore[method-assign]
    peaks = native_peaks(kept)
    searches = [
        smallest(runner, name, allocator, peaks[name])
        for name in options.smallest
        if name in peaks
        for allocator in options.allocator
    ]
    runner.run(searches, options.parallel, int(device_bytes * 0.97))


# ---- The command


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", choices=WORKLOADS, help="only this one; may be repeated")
    parser.add_argument("--allocator", action="append", choices=ALLOCATORS, help="only this one; may be repeated")
    parser.add_argument("--limit", type=int, default=0, metavar="BYTES", help="of device memory, for each run")
    parser.add_argument(
        "--smallest", nargs="+", choices=WORKLOADS, metavar="PROGRAM", help="the smallest limits of these instead"
    )
    parser.add_argument("--parallel", type=int, default=1, metavar="K", help="at once: times mean nothing then")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no run goes on")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="of one run; 120")
    parser.add_argument("--steps", type=int, default=0, help="of each run, in place of its own number")
    parser.add_argument("--output", type=Path, metavar="FILE", help="lines are added to it at once")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="what runs said is kept here")
    parser.add_argument("--fresh", action="store_true", help="no forks: each run imports for itself")
    parser.add_argument("--simulated", action="store_true", help="on the simulated device")
    parser.add_argument("--small", action="store_true", help="small models and few steps")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.allocator = options.allocator or list(ALLOCATORS)
    return options


def enter(options: argparse.Namespace) -> None:
    """Starts this program again in the environment of the steps of scripts/prove, once."""
    if os.environ.get("SPILLWAY_REAL_PROGRAMS") == "1":
        return
    layout: Any = importlib.import_module("proving.layout")
    machine = layout.Machine(ROOT, Path(sys.executable), options.simulated)
    more = {
        "SPILLWAY_REAL_PROGRAMS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # whether there is a GPU is asked without using it
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if options.simulated:
        more["SPILLWAY_SIM"] = DEVICE
    environment = machine.for_python(**more)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environment.pop(name, None)
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def main() -> int:
    options = arguments()
    enter(options)
    if options.inside:
        program, allocator, limit, file = options.inside.split(":", 3)
        inside(Job(program, allocator, int(limit)), options, Path(file))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp())
    # One allocator after the other compiles the same: the first pays, in the first quarter of its steps.
    os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"] = f"{folder}/inductor", f"{folder}/triton"
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    runner = Runner(options, options.logs.resolve() if options.logs else folder)
    try:
        if options.smallest:
            search_all(runner, options)
        else:
            jobs = [
                Job(program, allocator, options.limit)
                for program in options.program or WORKLOADS
                for allocator in options.allocator
            ]
            runner.run([once(runner, job) for job in jobs], options.parallel, DEVICE_BYTES)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return min(runner.failed, 1)


if __name__ == "__main__":
    sys.exit(main())
