"""The layering law: a folder may include only the folders above it.

Reads every #include of every C and C++ file. What the law allows and no file does is a breach too: it leaves the law.
With --self-test it checks itself, on sources that break each rule.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Each folder may include these besides itself. The tree of the public headers is above all.
LAW: dict[str, set[str]] = {
    "include/spillway": set(),
    "driver": {"include/spillway"},
    "stats": {"include/spillway", "driver/status.h"},
    "allocator": {"include/spillway", "driver", "stats"},
    "offload": {"include/spillway", "driver", "stats", "allocator"},
    # It runs where there is neither CUDA nor an allocator.
    "estimator": {"driver/status.h", "stats/size.h"},
    "abi": {"include/spillway", "driver", "stats", "allocator", "offload"},
    # Stands in for NVIDIA's libraries, so it knows nothing of the product.
    "sim": set(),
    # Reach the allocator through the C ABI; errors, statistics and the driver seam are shared.
    "cli": {"include/spillway", "driver", "stats", "estimator"},
    # The disk tier has no face of its own in the ABI: what it adds to the engine is measured from inside.
    "bench": {"include/spillway", "driver", "stats", "offload", "estimator", "cli", "sim/cuda/sim_control.h"},
}
# Used by no other folder.
UNSHIPPED = {"tests", "examples", "python", "docs", "scripts"}
# CUDA's headers may appear only where CUDA is spoken.
CUDA_HEADERS = re.compile(r"^(cuda|cuda_.*|cudaTypedefs|driver_types|.*runtime.*api)\.h$")
CUDA_FOLDERS = {"driver", "allocator", "offload", "abi", "sim"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SUFFIXES = {".c", ".cc", ".cpp", ".h", ".hpp", ".inc"}


def folder_of(path: str) -> str | None:
    """The folder of the law that a path below the root belongs to."""
    for folder in LAW:
        if path == folder or path.startswith(folder + "/"):
            return folder
    return None


def target_of(root: Path, source: Path, name: str) -> str | None:
    """The included file as a path below the root; None where it is not the project's."""
    for base in (root, root / "include", source.parent):
        candidate = (base / name).resolve()
        if candidate.is_file() and root in candidate.parents:
            return candidate.relative_to(root).as_posix()
    return None


class Include(NamedTuple):
    folder: str  # of the law
    where: str
    name: str  # as it is written
    target: str | None  # the project's file


def includes(root: Path) -> Iterator[Include]:
    for folder in LAW:
        for source in sorted((root / folder).rglob("*")):
            if source.suffix not in SUFFIXES or not source.is_file():
                continue
            where = source.relative_to(root).as_posix()
            for bracket, name in INCLUDE.findall(source.read_text(errors="replace")):
                target = target_of(root, source, name) if bracket == '"' or "/" in name else None
                yield Include(folder, where, name, target)


def violations(root: Path) -> list[str]:
    root = root.resolve()
    found = []
    for folder, where, name, target in includes(root):
        if CUDA_HEADERS.match(name) and folder not in CUDA_FOLDERS:
            found.append(f"{where}: includes {name}; {folder}/ must not know CUDA")
        if target is None:
            continue
        allowed = LAW[folder]
        owner = folder_of(target)
        if owner is None and target.split("/")[0] in UNSHIPPED:
            found.append(f"{where}: includes {target}; no shipped folder includes that")
        elif owner is not None and owner != folder and owner not in allowed and target not in allowed:
            permitted = ", ".join(sorted(allowed)) or "nothing but its own folder"
            found.append(f"{where}: includes {target}; {folder}/ may include {permitted}")
    return found


def unused(root: Path) -> list[str]:
    """What the law allows and nobody needs."""
    root = root.resolve()
    used = {(folder, name) for folder, _, _, target in includes(root) if target for name in (target, folder_of(target))}
    knows_cuda = {folder for folder, _, name, _ in includes(root) if CUDA_HEADERS.match(name)}
    found = [
        f"{folder}/ may include {allowed}, and no file of it does: the law can do without"
        for folder in LAW
        for allowed in sorted(LAW[folder])
        if (folder, allowed) not in used
    ]
    return found + [f"{folder}/ may know CUDA, and does not" for folder in sorted(CUDA_FOLDERS - knows_cuda)]


def self_test() -> list[str]:
    """Each entry plants one source and says whether it breaks the law."""
    plants = [
        ("driver/a.cpp", '#include "stats/s.h"', True),
        ("stats/a.cpp", '#include "driver/driver.h"', True),
        ("stats/a.cpp", '#include "driver/status.h"', False),
        ("stats/a.cpp", "#include <cuda.h>", True),
        ("allocator/a.cpp", "#include <cuda.h>", False),
        ("cli/a.cpp", "#include <cuda.h>", True),
        ("allocator/a.cpp", '  #  include "abi/abi.h"', True),
        ("allocator/a.cpp", '#include "sim/cuda/sim_control.h"', True),
        ("sim/cuda/a.cpp", '#include "driver/driver.h"', True),
        ("sim/cuda/a.cpp", '#include "sim_control.h"', False),
        ("driver/a.cpp", '#include "../stats/s.h"', True),
        ("include/spillway/a.h", '#include "driver/status.h"', True),
        ("abi/a.cpp", '#include "tests/t.h"', True),
        ("cli/a.cpp", '#include "allocator/arena.h"', True),
    ]
    headers = [
        "stats/s.h",
        "driver/driver.h",
        "driver/status.h",
        "abi/abi.h",
        "tests/t.h",
        "allocator/arena.h",
    ]
    headers.append("sim/cuda/sim_control.h")
    wrong = []
    for path, text, breaks in plants:
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            for file, content in [(header, "") for header in headers] + [(path, text + "\n")]:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(content)
            if bool(violations(root)) != breaks:
                wrong.append(f"self-test: {path} with {text!r} should {'break' if breaks else 'keep'} the law")
    return wrong + self_test_of_unused()


def self_test_of_unused() -> list[str]:
    """Each source makes use of what stands beside it, and of nothing else."""
    plants = [
        ("stats/a.cpp", '#include "driver/status.h"', {"stats/ may include driver/status.h"}),
        ("bench/a.cpp", '#include "driver/status.h"', {"bench/ may include driver"}),
        ("offload/a.cpp", "#include <cuda.h>", {"offload/ may know CUDA"}),
        ("cli/a.cpp", "#include <vector>", set()),
    ]
    wrong = []
    for path, text, uses in plants:
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            everything = {complaint.split(",")[0] for complaint in unused(root)}
            for file, content in (("driver/status.h", ""), (path, text + "\n")):
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(content)
            if everything - {complaint.split(",")[0] for complaint in unused(root)} != uses:
                wrong.append(f"self-test: {path} with {text!r} should use {sorted(uses)}")
    return wrong


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        complaints = self_test()
    elif len(sys.argv) == 2:
        complaints = violations(Path(sys.argv[1])) + unused(Path(sys.argv[1]))
    else:
        sys.exit("usage: layering.py ROOT | --self-test")
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
