"""Notes which line of the program initialises CUDA first, for the message that it was too early."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_line: str | None = None
_is_watched = False


class AfterImport(MetaPathFinder):
    """Calls `then` with a module once, when it has been imported. Who only asks where the module is changes nothing."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.then = then
        self.asking = threading.local()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.name or getattr(self.asking, "others", False):
            return None
        self.asking.others = True
        try:
            spec = find_spec(name)
        finally:
            self.asking.others = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Calling(spec.loader, self)
        return spec

    def imported(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self.then(module)


class _Calling(Loader):
    def __init__(self, loader: Loader, finder: AfterImport) -> None:
        self.loader = loader
        self.finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.finder.imported(module)


def after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, AfterImport(name, then))


def watch_imports() -> None:
    """From here on the first initialisation is noted, whenever PyTorch is imported."""
    after_import("torch", watch)


def watch(torch: ModuleType) -> None:
    global _is_watched
    if torch.version.cuda is None or torch.cuda.is_initialized():
        return
    initialise = torch._C._cuda_init
    _is_watched = True

    def noting() -> None:
        global _line
        if _line is None:
            own = str(torch.__path__[0])
            frames = [frame for frame in traceback.extract_stack()[:-1] if not frame.filename.startswith(own)]
            _line = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else None
        initialise()

    torch._C._cuda_init = noting


def describe() -> str:
    if _line is not None:
        return f"CUDA was used first at {_line}"
    if _is_watched:
        return "what used CUDA first is not known, because it was no line of Python"
    return "what used CUDA first is not known, because it came before the import of spillway"
