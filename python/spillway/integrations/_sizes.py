"""Sizes as the command writes and reads them."""

from __future__ import annotations

import re

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
GIB = 1 << 30


def size_bytes(size: object) -> int:
    """Of a text such as "2GiB" or "2GB", or a number of bytes. Errors: ValueError, one line."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    text = size.lower() if isinstance(size, str) else ""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?b|)|b?)\s*", text)
    if found is None:
        raise ValueError(f"{size!r} is no size; allowed: such as '2GiB' or '512MiB', or a number of bytes")
    number, letter, ending = found.groups()
    return int(float(number) * (1000 if ending == "b" else 1024) ** " kmgt".index(letter or " "))


def size_text(size: int) -> str:
    value, unit = float(size), 0
    while abs(value) >= 1024 and unit < len(UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{size} B" if unit == 0 else f"{value:.3f} {UNITS[unit]}"
