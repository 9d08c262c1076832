"""Calling a function with a module when that is imported.

Every Python under `spillway run` loads this file, without the rest of the package, so it imports next to nothing:
importlib.abc alone takes longer than Python's start.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

TYPE_CHECKING = False  # typing itself is not imported either
if TYPE_CHECKING:
    from importlib.abc import Loader


class AfterImport:
    """Calls `then` with a module once, when it has been imported. Who only asks where the module is changes nothing.

    Where `then` fails the import fails, and the next one does too: nobody gets the module without it.
    """

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
        spec.loader = _Calling(spec.loader, self)  # type: ignore[assignment]
        return spec

    def imported(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            self.then(module)
            sys.meta_path.remove(self)


class _Calling:
    """A loader, as far as importing a module asks for one."""

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
