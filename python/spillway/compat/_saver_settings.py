"""What torch_memory_saver's threads allocate into: its settings, and its environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .._errors import SpillwayError

DEFAULT_TAG = "default"
BACKENDS = ("pinned", "mmap")
YES, NO = ("1", "true", "TRUE", "yes", "YES"), ("0", "false", "FALSE", "no", "NO")


class ChoiceError(SpillwayError, ValueError):
    """Choices that exclude each other, or are not known."""


@dataclass(frozen=True)
class Settings:
    """Of a thread at one moment."""

    is_on: bool = False  # whether what is allocated belongs to the tag
    tag: str = DEFAULT_TAG
    keeps_on_host: bool = False
    keeps_on_disk: bool = False
    backend: str = BACKENDS[0]  # of what is kept on the host

    @property
    def to(self) -> str:
        """Where the bytes go while they are paused."""
        return "host" if self.keeps_on_host else "disk" if self.keeps_on_disk else "nowhere"

    @property
    def kind(self) -> str:
        """What tells regions of one tag apart, as part of their names."""
        if self.keeps_on_host:
            return "kept" if self.backend == "pinned" else self.backend
        return "disk" if self.keeps_on_disk else "dropped"

    def checked(self) -> Settings:
        """Errors: SpillwayError."""
        if self.keeps_on_host and self.keeps_on_disk:
            raise ChoiceError("enable_cpu_backup and enable_disk_backup exclude each other: choose one")
        return self


def chosen(
    tag: str, enable_cpu_backup: bool, enable_disk_backup: bool, cpu_backup_backend: str | None, usual_backend: str
) -> Settings:
    """Of a region with these arguments. Errors: SpillwayError."""
    if cpu_backup_backend is not None:
        checked_backend(cpu_backup_backend, "cpu_backup_backend")
        if not enable_cpu_backup:
            raise ChoiceError(f"cpu_backup_backend={cpu_backup_backend!r} requires enable_cpu_backup=True")
    backend = cpu_backup_backend or usual_backend
    return Settings(True, tag, bool(enable_cpu_backup), bool(enable_disk_backup), backend).checked()


def checked_backend(name: str, what: str) -> str:
    if name not in BACKENDS:
        raise ChoiceError(f"{what}={name!r} is not known here; allowed: {', '.join(BACKENDS)}")
    return name


def flag(name: str) -> bool:
    """An environment variable that is not set, or empty, is False. Errors: SpillwayError."""
    value = os.environ.get(name, "")
    if value and value not in YES + NO:
        raise ChoiceError(f"{name}={value!r} is not allowed; allowed: {', '.join(YES + NO)}")
    return value in YES


def from_environment() -> Settings:
    """What each thread begins with. Errors: SpillwayError."""
    on_host, on_disk = flag("TMS_INIT_ENABLE_CPU_BACKUP"), flag("TMS_INIT_ENABLE_DISK_BACKUP")
    if on_host and on_disk:
        raise ChoiceError("TMS_INIT_ENABLE_CPU_BACKUP and TMS_INIT_ENABLE_DISK_BACKUP exclude each other: set one")
    backend = checked_backend(
        os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND") or BACKENDS[0], "TMS_INIT_CPU_BACKUP_BACKEND"
    )
    return Settings(flag("TMS_INIT_ENABLE"), DEFAULT_TAG, on_host, on_disk, backend)
