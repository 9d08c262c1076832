"""Runs first in every Python that `spillway run` and `spillway dryrun` start, and in those that they start in turn.

Whatever else is to run at this point runs as well: this folder leaves the path, and the next sitecustomize is imported.
"""

import importlib
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_package = os.path.dirname(_here)

sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _here]
_own = sys.modules.pop("sitecustomize")
try:
    importlib.import_module("sitecustomize")
except ModuleNotFoundError as problem:
    if problem.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _own)

if os.environ.get("SPILLWAY_RUN"):
    if importlib.util.find_spec("spillway") is None:
        sys.path.append(os.path.dirname(_package))
    import spillway._run

    spillway._run.start()
