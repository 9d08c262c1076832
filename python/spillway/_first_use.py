"""Notes which line of the program initialises CUDA first, for the message that it was too early."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_line: str | None = None


class AfterImport(MetaPathFinder):
    """Calls `then` with a module once, when it has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Calling(spec.loader, self.then)
        return spec


class _Calling(Loader):
    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]) -> None:
        self.loader = loader
        self.then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.then(module)


def after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, AfterImport(name, then))


def watch_imports() -> None:
    """From here on the first initialisation is noted, whenever PyTorch is imported."""
    after_import("torch", watch)


def watch(torch: ModuleType) -> None:
    if torch.cuda.is_initialized():
        return
    initialise = torch.cuda._lazy_init

    def noting() -> None:
        global _line
        if _line is None and not torch.cuda.is_initialized():
            own = str(torch.__path__[0])
            frames = [frame for frame in traceback.extract_stack()[:-1] if not frame.filename.startswith(own)]
            _line = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else None
        initialise()

    torch.cuda._lazy_init = noting


def describe() -> str:
    if _line is not None:
        return f"CUDA was used first at {_line}"
    return "what used CUDA first is not known, because it came before the import of spillway"
