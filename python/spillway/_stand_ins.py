"""Stand-ins for NVIDIA's libraries, made for the installed PyTorch where they were not built with the package.

python -m spillway._stand_ins        prints the folder of all simulated CUDA libraries
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from ._build import cache_folder, cache_path
from ._errors import SpillwayError
from ._library import HERE

BUILT = HERE / "lib" / "sim"
MAKER = BUILT / "libraries" / "make_libraries.py"


def folder() -> Path:
    """Errors: SpillwayError, when they cannot be made."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise SpillwayError("PyTorch is not installed beside Spillway, so its libraries cannot be simulated")
    torch = Path(spec.origin).parent
    version = (torch / "version.py").read_bytes()
    key = hashlib.sha256(b"\0".join([str(torch).encode(), version, MAKER.read_bytes()])).hexdigest()[:16]
    target = cache_path() / f"simulated-{key}"
    if os.path.exists(target):  # False, too, where it may not be looked at
        return target
    compiler = os.environ.get("CC") or next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None or shutil.which("nm") is None:
        raise SpillwayError("a C compiler and nm are needed to simulate CUDA's libraries: install gcc and binutils")
    with tempfile.TemporaryDirectory(dir=cache_folder()) as work:
        made = Path(work) / "made"
        shutil.copytree(BUILT, made, ignore=shutil.ignore_patterns("libraries"))
        words = ["--torch", str(torch), "--built", str(BUILT), "--output", str(made), "--work", f"{work}/sources"]
        done = subprocess.run(
            [sys.executable, str(MAKER), *words, "--cc", compiler], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SpillwayError((done.stderr.strip().splitlines() or ["the simulated libraries were not made"])[-1])
        try:
            os.rename(made, target)
        except OSError:
            if not target.exists():  # else another process was first
                raise
    return target


if __name__ == "__main__":
    try:
        print(folder())
    except SpillwayError as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
