"""Steps: one program each, with a limit of time; what it said is kept, and a step that is done is not run again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .layout import Machine
from .results import Results

Word = str | Path
KEPT_CHARACTERS = 1500
SHORTEST_SECONDS = 3.0
MOST_AT_ONCE = 6  # contexts of a GPU, of which each takes half a gigabyte, and processors beside them


@dataclass
class Outcome:
    code: int | None  # none: it did not end in time
    seconds: float
    out: str
    error: str

    def last_json(self) -> dict[str, Any]:
        """The last line of standard output that is one JSON object, or the whole output where that is one."""
        for text in [self.out, *reversed(self.out.splitlines())]:
            with contextlib.suppress(ValueError):
                found = json.loads(text)
                if isinstance(found, dict):
                    return found
        return {}


def execute(command: Sequence[Word], environment: Mapping[str, str], seconds: float, log: Path) -> Outcome:
    """Ends the program and all that it started when the time is over."""
    begin = time.monotonic()
    out, error = (log.with_name(f"{log.name}.{kind}") for kind in ("out", "err"))
    with out.open("wb") as out_file, error.open("wb") as error_file:
        try:
            running = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=error_file,
                env=dict(environment),
                cwd=log.parent,
                start_new_session=True,
            )
        except OSError as problem:
            error_file.write(str(problem).encode())
            code: int | None = 127
        else:
            try:
                code = running.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:  # also where this process is told to end
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(running.pid, signal.SIGKILL)
                running.wait()
    texts = (file.read_text(errors="replace") for file in (out, error))
    return Outcome(code, round(time.monotonic() - begin, 2), *texts)


class Stage:
    """The steps of one stage. Once its time is over, further steps are left out and say so. Where the time of this call
    is shorter than the stage's own, a step that it cut off is left out too, and runs in the next call.

    Thread-safe: steps that measure no time run side by side."""

    def __init__(self, name: str, machine: Machine, results: Results, seconds: float, is_short: bool) -> None:
        self.name = name
        self.machine = machine
        self.results = results
        self.kept = results.stage(name)
        self.end = time.monotonic() + seconds
        self.is_short = is_short
        self.left_out: list[str] = []
        self.lock = threading.RLock()

    def side_by_side(self, jobs: Iterable[Callable[[], None]], alone: Iterable[Callable[[], None]] = ()) -> None:
        """As many at once as half of the machine's processors, or two; the first exception comes when all have ended.
        Those of `alone` follow, one at a time: they take much of the device, or look at all of it.
        """
        processors = os.cpu_count() or 1
        most = min(MOST_AT_ONCE, max(processors // 2, min(processors, 2)))
        with ThreadPoolExecutor(most) as pool:
            for started in [pool.submit(job) for job in jobs]:
                started.result()
        for job in alone:
            job()

    def left(self) -> float:
        return self.end - time.monotonic()

    def found(self, **values: Any) -> None:
        """What tables and claims ask for."""
        with self.lock:
            self.kept["found"].update(values)
            self.results.save()

    def log(self, step: str) -> Path:
        return self.results.logs / f"{self.name}.{step.replace('/', '_')}"

    def once(self, step: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The kept result of a step that is done, else that of `make`; {} where no time is left."""
        if step in self.kept["steps"]:
            kept: dict[str, Any] = self.kept["steps"][step]
            return kept
        if self.left() < SHORTEST_SECONDS:
            self.left_out.append(step)
            return {}
        made = make()
        if self.is_short and self.left() <= 0 and made["code"] != 0:
            self.left_out.append(step)
            return {}
        with self.lock:
            self.kept["steps"][step] = made
            self.results.save()
        print(f"  {step}: {summary(made)}", flush=True)
        return made

    def run(self, step: str, command: Sequence[Word], environment: Mapping[str, str], seconds: float) -> dict[str, Any]:
        """{"code", "seconds", "json" of what was printed, "tail" of what was said where it failed}."""

        def make() -> dict[str, Any]:
            outcome = execute(command, environment, min(seconds, self.left()), self.log(step))
            return kept_of(outcome)

        return self.once(step, make)

    def python(
        self, step: str, program: Path, *words: Word, seconds: float, preload: bool = False, **more: str
    ) -> dict[str, Any]:
        libraries = [self.machine.preload] if preload else []
        command = [self.machine.python, program, *words]
        return self.run(step, command, self.machine.for_python(*libraries, **more), seconds)


def kept_of(outcome: Outcome) -> dict[str, Any]:
    kept: dict[str, Any] = {"code": outcome.code, "seconds": outcome.seconds}
    if found := outcome.last_json():
        kept["json"] = found
    if outcome.code != 0:
        kept["tail"] = (outcome.error.strip() or outcome.out.strip())[-KEPT_CHARACTERS:]
    return kept


def summary(step: Mapping[str, Any]) -> str:
    code = step.get("code", 0)
    said = "ok" if code == 0 else "did not end in time" if code is None else f"exit code {code}"
    lines = str(step.get("tail", "")).strip().splitlines()
    return f"{said}, {step.get('seconds', 0)} s" + (f" ({lines[-1][:100]})" if lines else "")
