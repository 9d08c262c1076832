"""Where what was compiled or made for a machine is kept: made once, whole or not at all, and found by a name that says
all that it depends on.

In $SPILLWAY_CACHE, else in $XDG_CACHE_HOME/spillway or ~/.cache/spillway, else, where that cannot be written to, in a
folder of the user's own beside other temporary files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ._errors import SpillwayError


def folders() -> list[Path]:
    """In the order in which they are tried; one alone where the user names it."""
    if named := os.environ.get("SPILLWAY_CACHE"):
        return [Path(named)]
    found = []
    if caches := os.environ.get("XDG_CACHE_HOME"):
        found.append(Path(caches) / "spillway")
    else:
        with contextlib.suppress(RuntimeError):  # there is no home directory
            found.append(Path.home() / ".cache" / "spillway")
    return [*found, Path(tempfile.gettempdir()) / f"spillway-{os.getuid()}"]


def find(name: str) -> Path | None:
    """The file or folder of that name that was kept, if any."""
    for folder in folders():
        if os.path.exists(folder / name) and is_own(folder):  # False, too, where it may not be looked at
            return folder / name
    return None


def is_own(folder: Path) -> bool:
    """Whether nobody else can have put there what this process loads: asked of a folder that any user could make."""
    if folder.parent != Path(tempfile.gettempdir()) or os.environ.get("SPILLWAY_CACHE"):
        return True
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


@contextlib.contextmanager
def work_folder(cache: Path) -> Iterator[Path]:
    """A folder in `cache` that is gone afterwards. Those of killed processes go when they are a day old."""
    for left in cache.glob("making-*"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < time.time() - 24 * 3600:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as work:
        yield Path(work)


def writable_folder() -> Path:
    """There, and writable. Errors: SpillwayError, where no folder is."""
    refusals = []
    for folder in folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_own(folder):
                refusals.append(f"{folder} (another user's, or open to others)")
                continue
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as problem:
            refusals.append(f"{folder} ({problem.strerror})")
        else:
            return folder
    raise SpillwayError(
        f"what is compiled cannot be kept in {' nor in '.join(refusals)}; set SPILLWAY_CACHE to a folder that can be "
        "written to"
    )


@contextlib.contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """The processes that enter with the same `lock`, a file that is made and stays. Where the file system has no locks,
    or the file is another user's, all go in at once."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            file = held.enter_context(open(lock, "w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            # Closing is not enough: a child that another thread forked meanwhile has the file open too.
            held.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield
