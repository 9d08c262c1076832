"""Libraries for the installed PyTorch: prebuilt ones of the wheel, or compiled once and kept.

Kept in $SPILLWAY_CACHE, else $XDG_CACHE_HOME/spillway, else ~/.cache/spillway, under a name made from what the result
depends on: release and ABI of PyTorch, machine, sources, headers, flags. What is kept there serves without a compiler.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ._errors import SpillwayError
from ._library import HERE, include_folder

FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DNDEBUG")


def abi_tag(torch: Any) -> str:
    return f"{torch.__version__}-abi{int(torch._C._GLIBCXX_USE_CXX11_ABI)}"


def extension(torch: Any) -> Path:
    """The file of the allocator's extension. Errors: as compiled()."""
    root = include_folder()
    return compiled(torch, "spillway_torch", HERE / "_extension", root, sorted((root / "spillway").iterdir()))


def compiled(torch: Any, name: str, folder: Path, root: Path, headers: Sequence[Path]) -> Path:
    """The library of the sources in `folder`, which include `headers` by their paths from `root`, and PyTorch's.

    Errors: SpillwayError, when there is none and it cannot be compiled.
    """
    prebuilt = HERE / "lib" / f"{name}-{abi_tag(torch)}.so"
    if prebuilt.exists():
        return prebuilt
    flags = [*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    home = Path(torch.__file__).parent
    sources = sorted(folder.glob("*.cpp"))
    machine = [platform.machine(), *platform.libc_ver()]  # a home may be several machines'
    key = hashlib.sha256("\0".join([*flags, *machine, str(home), str(torch.version.git_version)]).encode())
    for file in [*sorted(folder.iterdir()), *headers]:
        key.update(file.read_bytes())
    target = cache_path() / f"{name}-{abi_tag(torch)}-{key.hexdigest()[:16]}.so"
    if os.path.exists(target):  # False, too, where it may not be looked at
        return target
    command = [*compiler(), *flags]
    includes = [root, home / "include", cuda_include_folder()]
    arguments = [f"-I{folder}" for folder in includes] + [str(source) for source in sources]
    libraries = [f"-L{home / 'lib'}", "-ltorch_cuda", "-ltorch_cpu", "-lc10_cuda", "-lc10"]
    options = ["-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed"]
    cache = cache_folder()
    with one_at_a_time(target.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=cache) as work:
        if os.path.exists(target):  # another process was first
            return target
        made = Path(work) / "library.so"
        done = subprocess.run(
            [*command, *arguments, "-o", str(made), *options, *libraries],
            capture_output=True,
            text=True,
            check=False,
            env=compiler_environment(),
        )
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
            raise SpillwayError(
                f"the extension for PyTorch {torch.__version__} does not compile ({errors[0].strip()}); "
                "install(mode='plain') needs no compiler"
            )
        # Whole or not at all, whoever else compiles it now.
        os.replace(made, target)
    return target


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


def compiler_environment() -> dict[str, str]:
    """Without what was preloaded into Python: the compiler has no use for it."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def compiler() -> list[str]:
    named = os.environ.get("CXX")
    for candidate in [named] if named else ["c++", "g++", "clang++"]:
        words = candidate.split()
        if words and shutil.which(words[0]) is not None:
            return words
    looked = named or "c++, g++, clang++"
    raise SpillwayError(f"no C++ compiler found ({looked}): install g++, or set CXX; install(mode='plain') needs none")


def cuda_folders() -> Iterator[Path]:
    """Where cuda_runtime_api.h may be: named, in the environment's packages, in a toolkit."""
    if named := os.environ.get("SPILLWAY_CUDA_INCLUDE"):
        yield Path(named)
    packages = Path(sysconfig.get_paths()["purelib"])
    yield packages / "nvidia" / "cu13" / "include"
    yield packages / "nvidia" / "cuda_runtime" / "include"
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if toolkit := os.environ.get(name):
            yield Path(toolkit) / "include"
    yield Path("/usr/local/cuda/include")
    yield Path("/usr/include")


def cuda_include_folder() -> Path:
    for folder in cuda_folders():
        if (folder / "cuda_runtime_api.h").exists():
            return folder
    raise SpillwayError(
        "cuda_runtime_api.h is not found: pip install nvidia-cuda-runtime, or set SPILLWAY_CUDA_INCLUDE to its folder; "
        "install(mode='plain') needs no headers"
    )


def cache_path() -> Path:
    """Errors: SpillwayError, where there is no home directory and no other folder is named."""
    if named := os.environ.get("SPILLWAY_CACHE"):
        return Path(named)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "spillway"
    try:
        return Path.home() / ".cache" / "spillway"
    except RuntimeError:
        raise SpillwayError(
            "the extension cannot be kept, for there is no home directory; set SPILLWAY_CACHE to a folder that can be "
            "written to"
        ) from None


def cache_folder() -> Path:
    """There, and writable. Errors: SpillwayError."""
    folder = cache_path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise SpillwayError(
            f"the extension cannot be kept in {folder} ({problem.strerror}); set SPILLWAY_CACHE to a folder that "
            "can be written to"
        ) from None
    return folder
