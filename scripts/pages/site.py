"""The site as a browser meets it: every address in it is that of a file of it, and of a place in that file."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ADDRESSES = {"a": "href", "link": "href", "img": "src", "script": "src"}


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.addresses: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if place := values.get("id"):
            self.places.add(place)
        if address := values.get(ADDRESSES.get(tag, "")):
            self.addresses.append((tag, address))


@cache
def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text())
    return reader


def complaint(page: Path, tag: str, address: str) -> str:
    """Links may lead to other sites; what a page is made of may not."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https", "mailto") and tag == "a" or parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return "is taken from a network"
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file():
        return "leads nowhere"
    place = unquote(parts.fragment)
    if place and target.suffix == ".html" and place not in read(target).places:
        return "names no place of that page"
    return ""


def broken_links(folder: Path) -> list[str]:
    wrong = []
    for page in sorted(folder.resolve().rglob("*.html")):
        for tag, address in read(page).addresses:
            if said := complaint(page, tag, address):
                wrong.append(f"{page.relative_to(folder.resolve())}: {address} {said}")
    return wrong
