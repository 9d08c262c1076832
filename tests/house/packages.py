"""The layering law of the Python package: a part of it may import only parts above it, and no modules go in a circle.

Reads every import of every file of python/spillway, those inside functions too. What the law allows and no file does is
a breach too: it leaves the law. With --self-test it checks itself, on sources that break each rule.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

NAME = "spillway"
# Each part may import these besides itself: parts, or single modules of them. A part is a folder or a file.
LAW: dict[str, set[str]] = {
    # All others stand on these, which know no PyTorch.
    "_errors": set(),
    "_library": {"_errors", "__version__"},
    "_counters": {"_library"},
    "_cache": {"_errors"},
    "_pytorch": {"_errors", "_library", "_counters", "_cache"},
    "_offload": {"_errors", "_library", "_counters", "_pytorch.install", "_pytorch.annotate"},
    "compat": {"_errors", "_library", "_counters", "_pytorch.install", "_offload.regions", "_offload.tiers"},
    "sim": {"_errors", "_library", "_pytorch.build"},
    "_stand_ins": {"_errors", "_library", "_cache"},
    # These tell the simulated NCCL of a rank of a dryrun, and stand in for the ranks that do not run.
    "_meeting": set(),
    "_ranks": set(),
    "_absent_ranks": {"_errors", "_ranks"},
    # Which values of a dryrun are computed, and what compiled code needs there.
    "_values": {"_errors", "_library", "_pytorch.build"},
    # Who holds memory at its peak.
    "_holders": {"_library", "_pytorch.build"},
    # Runs without the allocator, so it shares only what depends on PyTorch's release, and who holds memory.
    "_trace_model": {"_errors", "_holders", "_pytorch.releases", "_ranks"},
    "_without_cudnn": set(),
    "_compiled": {"_errors", "_cache", "_pytorch.after_import"},
    "_run": {
        *{"_errors", "_absent_ranks", "_compiled", "_holders", "_meeting", "_ranks", "_values"},
        *{"_without_cudnn"},
        *{"_pytorch.after_import", "_pytorch.install"},
    },
    # Runs in every Python below `spillway run`, before anything of the package is imported.
    "_bootstrap": {"_run"},
    "_command": {"_errors", "_library"},
    # Modules for what others wrote, which nothing imports but their users.
    "integrations": {
        "_errors",
        "_library",
        "_command",
        "_pytorch.install",
        "_pytorch.annotate",
        "_pytorch.trace",
        "_offload.tiers",
    },
    "__init__": {"_errors", "_pytorch", "_offload"},
    "__main__": {"_command"},
}


def part_of(module: str) -> str:
    return module.split(".")[0]


def modules_of(package: Path) -> dict[str, Path]:
    """By dotted name below the package; a folder's __init__ under the folder's name, the package's as it is."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


def named_by(node: ast.AST, folder: list[str]) -> Iterator[list[str]]:
    """What an import in a file of this folder names, as parts of a dotted name below the package."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            first, *below = alias.name.split(".")
            if first == NAME:
                yield below
    elif isinstance(node, ast.ImportFrom):
        below = node.module.split(".") if node.module else []
        if node.level == 0 and below[:1] == [NAME]:
            base = below[1:]
        elif node.level > 0:
            base = folder[: len(folder) - node.level + 1] + below
        else:
            return
        for alias in node.names:
            yield [*base, alias.name]


def imports_of(module: str, path: Path, modules: dict[str, Path]) -> list[str]:
    """The package's modules that it imports. What is no module is the package's own: "__version__", or "__init__"."""
    is_folder = path.name == "__init__.py" and module != "__init__"
    folder = module.split(".") if is_folder else module.split(".")[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        for named in named_by(node, folder):
            begins = (".".join(named[:length]) for length in range(len(named), 0, -1))
            own = "__version__" if named == ["__version__"] else "__init__"
            found.append(next((begin for begin in begins if begin in modules), own))
    return found


def circle(graph: dict[str, list[str]]) -> list[str]:
    """Modules that import each other in turn, the first named again at the end; none where there is no such circle."""
    done: set[str] = set()

    def search(trail: list[str]) -> list[str]:
        for target in graph.get(trail[-1], []):
            if target in trail:
                return [*trail[trail.index(target) :], target]
            if target not in done and (found := search([*trail, target])):
                return found
        done.add(trail[-1])
        return []

    return next((found for module in graph if (found := search([module]))), [])


def graph_of(modules: dict[str, Path]) -> dict[str, list[str]]:
    return {module: imports_of(module, path, modules) for module, path in modules.items()}


def violations(root: Path) -> list[str]:
    modules = modules_of(root / "python" / NAME)
    graph = graph_of(modules)
    found = []
    for module, targets in graph.items():
        where, part = modules[module].relative_to(root).as_posix(), part_of(module)
        if part not in LAW:
            found.append(f"{where}: {part} has no row in the law of tests/house/packages.py")
            continue
        for target in targets:
            if part_of(target) != part and target not in LAW[part] and part_of(target) not in LAW[part]:
                permitted = ", ".join(sorted(LAW[part])) or "nothing of the package"
                found.append(f"{where}: imports {target}; {part} may import {permitted}")
    if found_circle := circle(graph):
        found.append(f"these import each other: {' -> '.join(found_circle)}")
    return found


def unused(root: Path) -> list[str]:
    """What the law allows and nobody needs."""
    used = set()
    for module, targets in graph_of(modules_of(root / "python" / NAME)).items():
        used |= {(part_of(module), name) for target in targets for name in (target, part_of(target))}
    return [
        f"{part} may import {allowed}, and no file of it does: the law can do without"
        for part in LAW
        for allowed in sorted(LAW[part])
        if (part, allowed) not in used
    ]


def self_test() -> list[str]:
    """Each entry plants one file and says whether it breaks the law."""
    plants = [
        ("_library.py", "from ._errors import SpillwayError", False),
        ("_library.py", "from . import __version__", False),
        ("_library.py", "from . import install", True),
        ("_library.py", "def late():\n    from ._pytorch.install import install", True),
        ("_pytorch/hooks.py", "from .._offload import tiers", True),
        ("_pytorch/hooks.py", "from ..compat.cupy import allocate", True),
        ("_pytorch/hooks.py", "from .install import install", False),
        ("_pytorch/hooks.py", "import torch", False),
        ("_pytorch/releases.py", "from .install import install", True),  # which imports it
        ("_offload/tiers.py", "from .._pytorch.install import installed", False),
        ("_offload/tiers.py", "from .._pytorch import install, releases", True),
        ("_offload/tiers.py", "from .._trace_model.guards import guarded", True),
        ("_offload/tiers.py", "from .. import region", True),
        ("_offload/tiers.py", "import spillway", True),
        ("_offload/__init__.py", "from .tiers import tiers", False),
        ("_trace_model/guards.py", "from .._pytorch import releases", False),
        ("_trace_model/guards.py", "import spillway._offload.tiers", True),
        ("_bootstrap/sitecustomize.py", "from spillway._run import serve", False),
        ("_bootstrap/sitecustomize.py", "from spillway import install", True),
        ("__init__.py", "from ._offload.tiers import tier_stats", False),
        ("_another.py", "", True),
    ]
    others = {
        "_errors": "",
        "_run": "",
        "_pytorch/install": "from . import releases",
        "_pytorch/releases": "",
        "_offload/tiers": "",
        "_trace_model/guards": "",
        "compat/cupy": "",
    }
    wrong = [
        f"self-test: {part} is above {target}, which it may import"
        for place, part in enumerate(LAW)
        for target in LAW[part] - {"__version__"}
        if part_of(target) not in list(LAW)[:place]
    ]
    for path, text, breaks in plants:
        with tempfile.TemporaryDirectory() as scratch:
            files = {f"{name}.py": content for name, content in others.items()}
            for name, content in {**files, path: text}.items():
                file = Path(scratch) / "python" / NAME / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content + "\n")
            if bool(violations(Path(scratch))) != breaks:
                wrong.append(f"self-test: {path} with {text!r} should {'break' if breaks else 'keep'} the law")
    return wrong + self_test_of_unused()


def self_test_of_unused() -> list[str]:
    """One import makes use of one permission, and of no other."""
    with tempfile.TemporaryDirectory() as scratch:
        everything = unused(Path(scratch))
        package = Path(scratch) / "python" / NAME
        package.mkdir(parents=True)
        (package / "_errors.py").touch()
        (package / "_cache.py").write_text("from ._errors import SpillwayError\n")
        gone = set(everything) - set(unused(Path(scratch)))
    are_all = len(everything) == sum(map(len, LAW.values()))
    if are_all and [each.split(",")[0] for each in gone] == ["_cache may import _errors"]:
        return []
    return [f"self-test: _cache imports _errors, and these count as used: {sorted(gone)}"]


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        complaints = self_test()
    elif len(sys.argv) == 2:
        root = Path(sys.argv[1]).resolve()
        complaints = violations(root) + unused(root)
    else:
        sys.exit("usage: packages.py ROOT | --self-test")
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
