"""Tables of Markdown and the figures in them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

GIB = 1 << 30
WIDTH = 120


def table(head: str, rows: Iterable[Sequence[object]]) -> str:
    """`head` names the columns, separated by |; a name that ends in : is of a column of numbers."""
    names = [name.strip() for name in head.split("|")]
    lines = [[name.rstrip(":") for name in names], *rows]
    text = [f"| {' | '.join(map(str, line))} |" for line in lines]
    text.insert(1, "|" + "|".join("---:" if name.endswith(":") else "---" for name in names) + "|")
    return "\n".join(text)


def page(*paragraphs: str) -> str:
    """Wraps prose, and leaves headings, tables and commands as they are. What is empty leaves no gap."""
    return "\n\n".join(wrapped(paragraph) for paragraph in paragraphs if paragraph) + "\n"


def wrapped(paragraph: str) -> str:
    if paragraph.startswith(("#", "|", "    ")):
        return paragraph
    return textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)


def ratio(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def gib(count: int) -> str:
    return f"{count / GIB:.3f} GiB"


def listed(parts: Sequence[str]) -> str:
    *most, last = parts or ["none"]
    return f"{', '.join(most)} and {last}" if most else last


def not_good(findings: Iterable[str]) -> str:
    text = "; ".join(findings)
    return f"Not good: {text}." if text else ""


def span(values: Iterable[float], form: str) -> str:
    """The smallest and the largest, or the one figure that both read as."""
    ordered = sorted(values)
    low, high = format(ordered[0], form), format(ordered[-1], form)
    return low if low == high else f"{low} to {high}"
