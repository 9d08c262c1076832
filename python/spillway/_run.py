"""What `spillway run` and `spillway dryrun` do inside each Python process, before the program's first line.

Processes that never import PyTorch pay for one entry in sys.meta_path.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from ._first_use import after_import
from ._install import install


def start() -> None:
    """SPILLWAY_RUN names the integration ("full", "plain", "native" for none); SPILLWAY_DRYRUN a folder for results."""
    mode = os.environ["SPILLWAY_RUN"]

    def imported(torch: Any) -> None:
        if torch.version.cuda is None:
            print(f"spillway: PyTorch {torch.__version__} has no CUDA: nothing to serve", file=sys.stderr)
            return
        if mode != "native":
            install("plain" if mode == "plain" else "full")
        if folder := os.environ.get("SPILLWAY_DRYRUN"):
            _prepare_dryrun(torch, Path(folder))

    after_import("torch", imported)


def _prepare_dryrun(torch: Any, folder: Path) -> None:
    """On the simulated device: what it cannot do is switched off, and the end is written down."""
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    # As of 2.15 PyTorch's expandable segments ask NVML, which is not simulated, unless they are to stay in the process.
    os.environ.setdefault("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC", "0")
    result: dict[str, Any] = {"process_id": os.getpid(), "rank": _rank()}
    before = sys.excepthook

    def note_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, torch.OutOfMemoryError):
            result["oom"] = {"where": _where(torch, trace), "text": str(error)}
        before(kind, error, trace)

    sys.excepthook = note_exception
    pid = os.getpid()

    def write() -> None:
        if os.getpid() != pid or not torch.cuda.is_initialized():
            return
        result["devices"] = [_device(torch, device) for device in range(torch.cuda.device_count())]
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".json", delete=False) as file:
            json.dump(result, file)

    atexit.register(write)


def _device(torch: Any, device: int) -> dict[str, int]:
    stats = torch.cuda.memory_stats(device)
    return {
        "device": device,
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_requested_bytes": stats["requested_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "num_ooms": stats["num_ooms"],
    }


def _rank() -> int:
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0


def _where(torch: Any, trace: TracebackType | None) -> str:
    """The program's line, not PyTorch's."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not frame.filename.startswith(str(torch.__path__[0]))] or list(frames)
    return f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else "an unknown line"
