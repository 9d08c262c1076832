"""What a program says in its trace: marks of steps and phases, and what its allocations are for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

from .._library import check, library
from .install import in_use

_thread = local()


def mark(text: str) -> None:
    """Puts a mark into the trace, such as the beginning of a step. Without a trace, or Spillway in use, nothing."""
    if in_use():
        check(library().spw_trace_mark(text.encode()))


@contextmanager
def tag(name: str) -> Iterator[None]:
    """Within, this thread's allocations are recorded under this name; the innermost name counts.

    A backward pass allocates in threads of its own, which have no tag.
    """
    before = getattr(_thread, "name", None)
    _set(name)
    try:
        yield
    finally:
        _set(before)


def _set(name: str | None) -> None:
    _thread.name = name
    if in_use():
        check(library().spw_trace_tag(None if name is None else name.encode()))
