"""What a page has: its headings' anchors, its links, and what it shows as code. Read as Markdown is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token


class Link(NamedTuple):
    line: int
    target: str


class Code(NamedTuple):
    """A block of code, or words in backquotes, which are no block."""

    line: int
    text: str
    language: str
    is_block: bool


class Page(NamedTuple):
    anchors: frozenset[str]
    links: list[Link]
    code: list[Code]


def anchor_of(heading: str) -> str:
    """As GitHub names it: small letters, no punctuation, a hyphen for each space."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors_of(headings: Iterator[str]) -> frozenset[str]:
    found: set[str] = set()
    for heading in headings:
        name = base = anchor_of(heading)
        number = 0
        while name in found:
            number += 1
            name = f"{base}-{number}"
        found.add(name)
    return frozenset(found)


def headings(tokens: list[Token]) -> Iterator[str]:
    for token, following in zip(tokens, tokens[1:], strict=False):
        if token.type == "heading_open":
            children = following.children or []
            yield "".join(child.content for child in children if child.type in ("text", "code_inline"))


@cache
def read(path: Path) -> Page:
    text = path.read_text()
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    links, code = [], []
    for token in tokens:
        line = (token.map or [0])[0] + 1
        if token.type in ("fence", "code_block"):
            code.append(Code(line + (token.type == "fence"), token.content, token.info.strip(), True))
        row = line  # of what follows in a paragraph of several lines
        for child in token.children or []:
            if child.type in ("softbreak", "hardbreak"):
                row += 1
            target = child.attrs.get("href") if child.type == "link_open" else child.attrs.get("src")
            if target is not None:
                links.append(Link(row, str(target)))
            if child.type == "code_inline":
                code.append(Code(row, child.content, "", False))
    return Page(anchors_of(headings(tokens)), links, code)


def broken_links(path: Path, root: Path) -> Iterator[str]:
    """Links to no file of the project, and to no heading of a page. Those to other sites are not followed."""
    for line, target in read(path).links:
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or not file.is_relative_to(root):
            yield f"{path.relative_to(root)}:{line}: {target} leads nowhere"
        elif anchor and (file.suffix != ".md" or anchor not in read(file).anchors):
            yield f"{path.relative_to(root)}:{line}: {target}: {file.relative_to(root)} has no heading of that name"
