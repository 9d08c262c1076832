"""Lays out what the site is made of: the pages, with links that stay in it, and a page for each file that they name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from . import reference
from .contents import CHAPTERS, DOCS, ELSEWHERE, GENERATED, HOME, ROOT

LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(```.*?^```|(?: {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
LANGUAGES = {
    ".c": "c",
    ".h": "c",
    ".hpp": "c++",
    ".cpp": "c++",
    ".cu": "c++",
    ".py": "python",
    ".json": "json",
    ".sh": "bash",
    ".sbatch": "bash",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
}
ORPHAN = "---\norphan: true\n---\n\n"  # in no menu
LARGEST_SHOWN = 100_000  # bytes: what is longer is to be downloaded


def tracked(folder: str) -> list[Path]:
    """The files of a folder that belong to the project, below it too."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        return sorted({ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()})
    return sorted(path for path in (ROOT / folder).rglob("*") if path.is_file())


class Stage:
    """A folder that Sphinx reads. Pages of docs/ lie in it under their own names, other files below files/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages: set[str] = set()  # as the menu names them
        self.shown: set[Path] = set()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def place(self, path: Path) -> str:
        """Where a file or folder of the project is in the site."""
        name = path.relative_to(ROOT).as_posix()
        if name in ELSEWHERE:
            return ELSEWHERE[name]
        if path in (DOCS / "schema", DOCS / "decisions"):
            return f"{path.relative_to(DOCS)}/index.md"
        if path.is_relative_to(DOCS) and path.suffix in (".md", ".png", ".svg"):
            return path.relative_to(DOCS).as_posix()
        return f"files/{name}/index.md" if path.is_dir() else f"files/{name}.md"

    def link(self, path: Path, here: str) -> str:
        self.show(path)
        return os.path.relpath(self.place(path), Path(here).parent)

    def write(self, place: str, text: str) -> None:
        target = self.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        self.pages.add(place.removesuffix(".md"))

    def page(self, path: Path) -> None:
        """A page as it is, but for links to what is a page of the site under another name."""
        here = self.place(path)

        def inside(found: re.Match[str]) -> str:
            target = (path.parent / found[2]).resolve()
            if not target.exists() or not target.is_relative_to(ROOT):
                return found[0]
            return f"{found[1]}{self.link(target, here)}{found[3]}"

        parts = FENCE.split(path.read_text())
        self.write(here, "".join(part if at % 2 else LINK.sub(inside, part) for at, part in enumerate(parts)))

    def show(self, path: Path) -> None:
        """Makes a page of a file, or of what is in a folder, once."""
        here = self.place(path)
        if path in self.shown or not here.endswith("/index.md") and not here.startswith("files/"):
            return
        self.shown.add(path)
        name = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            files = [file for file in tracked(name) if path != DOCS / "decisions" or file.suffix == ".md"]
            lines = "".join(f"- [{self.title(file)}]({self.link(file, here)})\n" for file in files)
            heading = {"docs/schema": "Schemas", "docs/decisions": "Decisions"}.get(name, f"{name}/")
            self.write(here, f"{ORPHAN}# {heading}\n\n{INTRODUCTIONS.get(name, '')}{lines}")
            return
        copy = self.folder / "files" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        shown = ""
        if path.suffix in LANGUAGES or path.suffix in ("", ".txt"):
            text = path.read_text() if path.stat().st_size <= LARGEST_SHOWN else ""
            shown = f"\n````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n" if text else ""
        self.write(here, f"{ORPHAN}# {name}\n\n[Download {path.name}](<{path.name}>)\n{shown}")

    def title(self, path: Path) -> str:
        if path.suffix == ".md":
            return next(line[2:] for line in path.read_text().splitlines() if line.startswith("# "))
        return path.relative_to(ROOT).as_posix()


INTRODUCTIONS = {
    "docs/schema": "What commands write with `--json`, and dumps, as [JSON Schema](https://json-schema.org).\n\n",
    "docs/decisions": "Choices between alternatives: what was measured, what was chosen, and when to think again.\n\n",
}


def menu() -> str:
    """The tree of pages that Sphinx makes its menu of."""
    trees = []
    for chapter, names in CHAPTERS.items():
        listed = "\n".join(names)
        trees.append(f"\n```{{toctree}}\n:hidden:\n:caption: {chapter}\n\n{listed}\n```\n")
    return "".join(trees)


def unlisted(stage: Stage) -> list[str]:
    listed = {name for names in CHAPTERS.values() for name in names} | {HOME}
    found = {page for page in stage.pages if not page.startswith(("files/", "decisions/", "schema/"))}
    wrong = [f"docs/{name}.md is in no chapter of scripts/pages/contents.py" for name in sorted(found - listed)]
    return wrong + [
        f"scripts/pages/contents.py names {name}, which is not there" for name in sorted(listed - stage.pages)
    ]


def stage(folder: Path, command: Path) -> list[str]:
    """What is wrong with the list of pages."""
    made = Stage(folder)
    for path in sorted(DOCS.rglob("*.md")):
        made.page(path)
    for name in ELSEWHERE:
        made.page(ROOT / name)
    made.show(DOCS / "schema")
    made.show(DOCS / "decisions")
    shutil.copytree(DOCS / "pictures", folder / "pictures")
    for name in sorted(GENERATED):
        made.write(f"{name}.md", reference.MAKERS[name](command))
    home = folder / f"{HOME}.md"
    home.write_text(home.read_text() + menu())
    decisions = sorted(page for page in made.pages if page.startswith("decisions/") and page != "decisions/index")
    listed = "\n".join(f"/{page}" for page in decisions)
    for name, below in (("schema", ""), ("decisions", f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n")):
        index = folder / name / "index.md"
        index.write_text(index.read_text().replace(ORPHAN, "") + below)
    return unlisted(made)
