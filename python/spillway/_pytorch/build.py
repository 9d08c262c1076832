"""Libraries for the installed PyTorch: prebuilt ones of the wheel, or compiled once and kept (_cache.py) for all
environments that have the same PyTorch, under a name made from what the result depends on: release, ABI and
configuration of PyTorch, machine, sources, headers, flags. What is kept there serves without a compiler.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import _cache
from .._errors import SpillwayError
from .._library import include_folder, installed, library_path

SOURCES = Path(__file__).resolve().parent / "extension"
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-DNDEBUG")


def abi_tag(torch: Any) -> str:
    return f"{torch.__version__}-abi{int(torch._C._GLIBCXX_USE_CXX11_ABI)}"


def extension(torch: Any) -> Path:
    """The file of the allocator's extension. Errors: as compiled()."""
    root = include_folder()
    return compiled(torch, "spillway_torch", SOURCES, root, sorted((root / "spillway").iterdir()))


def compiled(torch: Any, name: str, folder: Path, root: Path, headers: Sequence[Path]) -> Path:
    """The library of the sources in `folder`, which include `headers` by their paths from `root`, and PyTorch's.

    Errors: SpillwayError, when there is none and it cannot be compiled.
    """
    prebuilt = f"{name}-{abi_tag(torch)}.so"
    if (beside := library_path().parent / prebuilt).exists():
        return beside
    if shipped := installed(f"lib/{prebuilt}"):
        return shipped
    flags = [*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    home = Path(torch.__file__).parent
    sources = sorted(folder.glob("*.cpp"))
    machine = [platform.machine(), *platform.libc_ver()]  # a home may be several machines'
    # Two builds of one revision differ in their libraries. What PyTorch says of itself depends on the devices it sees.
    built = [home / "lib" / f"lib{each}.so" for each in ("c10_cuda", "torch_cpu", "torch_cuda")]
    build = [str(torch.version.git_version), *(str(each.stat().st_size) for each in built if each.exists())]
    key = hashlib.sha256("\0".join([*flags, *machine, *build]).encode())
    for file in [*sorted(folder.iterdir()), *headers]:
        key.update(file.read_bytes())
    file_name = f"{name}-{abi_tag(torch)}-{key.hexdigest()[:16]}.so"
    if kept := _cache.find(file_name):
        return kept
    command = [*compiler(), *flags]
    includes = [root, home / "include", cuda_include_folder()]
    arguments = [f"-I{folder}" for folder in includes]
    libraries = [f"-L{home / 'lib'}", "-ltorch_cuda", "-ltorch_cpu", "-lc10_cuda", "-lc10"]
    options = ["-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed"]
    cache = _cache.writable_folder()
    target = cache / file_name
    with _cache.one_at_a_time(target.with_suffix(".lock")), _cache.work_folder(cache) as work:
        if os.path.exists(target):  # another process was first
            return target
        print(f"spillway: compiling for PyTorch {torch.__version__}, once; it is kept in {cache}", file=sys.stderr)
        # All sources at once: most of the time goes into PyTorch's headers, which are read once then. Compiled and
        # linked apart, so that a cache of compilations (CXX="ccache c++") knows it again.
        (work / "whole.cpp").write_text("".join(f'#include "{source}"\n' for source in sources))
        for step in (
            [*command, *arguments, "-c", "whole.cpp", "-o", "whole.o"],
            [*command, "-shared", "whole.o", "-o", "library.so", *options, *libraries],
        ):
            _compile(step, work, str(torch.__version__))
        # Whole or not at all, whoever else compiles it now.
        os.replace(work / "library.so", target)
    return target


def _compile(command: Sequence[str], folder: Path, release: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=compiler_environment())
    if done.returncode == 0:
        return
    errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
    raise SpillwayError(
        f"the extension for PyTorch {release} does not compile ({errors[0].strip()}); "
        "install(mode='plain') needs no compiler"
    )


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
