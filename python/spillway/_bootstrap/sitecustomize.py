"""Runs first in every Python that `spillway run` and `spillway dryrun` start, and in those that they start in turn.

Whatever else is to run at this point runs as well: this folder leaves the path, and Python looks for a sitecustomize
again. A Python that never imports PyTorch pays for one entry in sys.meta_path.
"""

import importlib.util
import os
import site
import sys
from types import ModuleType

_here = os.path.dirname(os.path.abspath(__file__))
_package = os.path.dirname(_here)

sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _here]
_own = sys.modules.pop("sitecustomize")
site.execsitecustomize()  # an error in it is printed, and Python goes on
sys.modules.setdefault("sitecustomize", _own)


def _serve_imports(mode: str, results: str | None) -> None:
    if importlib.util.find_spec("spillway") is None:
        sys.path.append(os.path.dirname(_package))
    # From its file: an import would bring the whole package.
    file = os.path.join(_package, "_pytorch", "after_import.py")
    spec = importlib.util.spec_from_file_location("spillway_after_import", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def serve(torch: ModuleType) -> None:
        from spillway._run import serve

        serve(torch, mode, results)

    module.after_import("torch", serve)


if _mode := os.environ.get("SPILLWAY_RUN"):
    try:
        _serve_imports(_mode, os.environ.get("SPILLWAY_DRYRUN"))
    except BaseException as problem:  # with a PyTorch that was imported by now
        # Python would print it and go on, with PyTorch's own allocator.
        if not isinstance(problem, SystemExit):
            sys.excepthook(type(problem), problem, problem.__traceback__)
        print(end="", flush=True)
        os._exit(1)
