"""The functions of torch_memory_saver's library that other packages call, as they reach them:

    torch_memory_saver._impl._binary_wrapper.cdll.tms_set_interesting_region(False)

They set what the calling thread allocates into from there on. Texts are bytes, as in C. Unlike there, an error is a
SpillwayError.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from ._saver_settings import Settings, checked_backend


class Saver(Protocol):
    retain_cpu_backup: bool
    memory_margin_bytes: int

    def settings(self) -> Settings: ...
    def set_settings(self, settings: Settings) -> None: ...
    def pause(self, tag: str | None = None) -> None: ...
    def resume(self, tag: str | None = None) -> None: ...
    def set_disk_backup_dir(self, path: str) -> None: ...


class Symbols:
    def __init__(self, saver: Saver) -> None:
        self._saver = saver

    def _set(self, **changes: Any) -> None:
        self._saver.set_settings(replace(self._saver.settings(), **changes))

    def tms_set_interesting_region(self, is_on: bool) -> None:
        self._set(is_on=bool(is_on))

    def tms_get_interesting_region(self) -> bool:
        return self._saver.settings().is_on

    def tms_set_current_tag(self, tag: bytes) -> None:
        self._set(tag=tag.decode())

    def tms_get_current_tag(self) -> bytes:
        return self._saver.settings().tag.encode()

    def tms_set_enable_cpu_backup(self, keeps: bool) -> None:
        self._set(keeps_on_host=bool(keeps))

    def tms_get_enable_cpu_backup(self) -> bool:
        return self._saver.settings().keeps_on_host

    def tms_set_cpu_backup_backend(self, name: bytes) -> None:
        self._set(backend=checked_backend(name.decode(), "cpu_backup_backend"))

    def tms_get_cpu_backup_backend(self) -> bytes:
        return self._saver.settings().backend.encode()

    def tms_set_enable_disk_backup(self, keeps: bool) -> None:
        self._set(keeps_on_disk=bool(keeps))

    def tms_get_enable_disk_backup(self) -> bool:
        return self._saver.settings().keeps_on_disk

    def tms_set_disk_backup_dir(self, path: bytes) -> None:
        self._saver.set_disk_backup_dir(path.decode())

    def tms_set_retain_cpu_backup(self, retains: bool) -> None:
        self._saver.retain_cpu_backup = retains

    def tms_get_retain_cpu_backup(self) -> bool:
        return self._saver.retain_cpu_backup

    def set_memory_margin_bytes(self, value: int) -> None:
        self._saver.memory_margin_bytes = value

    def tms_pause(self, tag: bytes | None) -> int:
        self._saver.pause(tag.decode() if tag else None)
        return 0

    def tms_resume(self, tag: bytes | None) -> int:
        self._saver.resume(tag.decode() if tag else None)
        return 0


class Wrapper:
    def __init__(self, saver: Saver) -> None:
        self.cdll = Symbols(saver)


class Implementation:
    def __init__(self, saver: Saver) -> None:
        self._binary_wrapper = Wrapper(saver)
