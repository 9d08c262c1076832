"""PyTorch programs in processes of their own, each on a simulated device of its own.

The process that forks has imported PyTorch and has not used CUDA, so that a run costs a fork and no import.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
ALLOCATORS = ("native", "expandable", "plain", "full")


@dataclass
class Outcome:
    """Of one process. Neither flag: it ended well."""

    failure: str = ""  # the trace of the exception that ended it
    out_of_memory: bool = False
    value: Any = None  # what the program returned
    backend: str = ""  # torch.cuda.get_allocator_backend()
    stats: dict[str, int] = field(default_factory=dict)  # torch.cuda.memory_stats() at the end


def enter(build: Path, **more: str) -> None:
    """Starts this Python program again with the simulated device of `build` in place of NVIDIA's libraries, once.

    `more` is of its environment.
    """
    libraries = sorted((build / "lib" / "sim").glob("*.so.*"))
    if not libraries:
        sys.exit(f"{Path(sys.argv[0]).name}: no simulated libraries in {build / 'lib' / 'sim'}: build first")
    preloaded = ":".join(map(str, libraries))
    if preloaded in os.environ.get("LD_PRELOAD", ""):  # valgrind adds to it
        return
    environment = {
        **os.environ,
        "LD_PRELOAD": preloaded,
        "PYTHONPATH": str(ROOT / "python"),
        "SPILLWAY_LIBCUDA": str(build / "lib" / "sim" / "libcuda.so.1"),
        "SPILLWAY_LIBRARY": str(build / "lib" / "libspillway.so.0"),
        "SPILLWAY_CACHE": str(build / "extension"),
        **more,
    }
    environment.setdefault(
        "SPILLWAY_CUDA_INCLUDE", str(ROOT / ".venv" / "cuda-headers" / "nvidia" / "cu13" / "include")
    )
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


Child = tuple[int, int]  # its process id, and the pipe of its outcome


def run(program: Callable[[], Any], allocator: str, device: str, ranks: int = 1) -> list[Outcome]:
    """One outcome for each rank. `device` is a SPILLWAY_SIM. Where one rank fails, the others are ended."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())} if ranks > 1 else {}
    children = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
        children.append(start(program, allocator, {"SPILLWAY_SIM": device, **address, **place}))
    return collect(children)


def collect(children: list[Child]) -> list[Outcome]:
    """Waits for all. Where one fails, those after it are ended."""
    outcomes = []
    for index, (_, answer) in enumerate(children):
        with os.fdopen(answer, "rb") as pipe:
            data = pipe.read()
        outcomes.append(pickle.loads(data) if data else Outcome("the process died"))
        if outcomes[-1].failure:
            for pid, _ in children[index + 1 :]:
                os.kill(pid, signal.SIGKILL)
    for pid, _ in children:
        os.waitpid(pid, 0)
    return outcomes


def start(program: Callable[[], Any], allocator: str, environment: dict[str, str]) -> Child:
    ours, theirs = os.pipe()
    child = os.fork()
    if child != 0:
        os.close(theirs)
        return child, ours
    os.close(ours)
    os.environ.update(environment)
    outcome = Outcome()
    torch: Any = importlib.import_module("torch")
    try:
        serve(torch, allocator)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            outcome.value = program()
            torch.cuda.synchronize()
        outcome.backend = torch.cuda.get_allocator_backend()
        outcome.stats = dict(torch.cuda.memory_stats())
    except BaseException as problem:
        outcome.failure = traceback.format_exc()
        outcome.out_of_memory = any("out of memory" in str(cause) for cause in _causes(problem))
    with os.fdopen(theirs, "wb") as pipe:
        pickle.dump(outcome, pipe)
    os._exit(0)


def serve(torch: Any, allocator: str) -> None:
    """Makes it the allocator of this process; cuDNN, which is not simulated, is switched off."""
    os.environ["TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"] = "0"  # expandable segments ask NVML else, which is not simulated
    if allocator == "expandable":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    elif allocator in ("plain", "full"):
        spillway: Any = importlib.import_module("spillway")
        spillway.install(allocator)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    """The exception and those in whose handling it was raised: leaving a capture that failed raises another."""
    while problem is not None:
        yield problem
        problem = problem.__context__


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
