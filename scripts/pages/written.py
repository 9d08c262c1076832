"""Commands, code and names that pages show: each is one that the project has, by its own tables.

A command's words are held against the help of that command, a script's options against its source, Python against its
grammar and the package's list of names, variables and settings against what the sources read.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .contents import ROOT
from .reading import Code, read

PLACEHOLDER = re.compile(r"\.\.\.|…")
ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")
SCRIPT = re.compile(r"(?:\./)?((?:scripts|docs|bench|examples|tests)/[\w./-]+)")
SHELL_OPERATORS = {"|", "||", "&&", ";", "&"}


class Table(NamedTuple):
    """What a command takes: options by whether each has a value, and how many words by their place."""

    options: dict[str, bool]
    places: int


class Tables:
    def __init__(self, command: Path) -> None:
        self.command = command
        self.read: dict[str, Table] = {}
        self.names = set(re.findall(r"^  ([a-z][a-z-]+)(?:  |$)", self.help(), re.MULTILINE))

    def help(self, *words: str) -> str:
        return subprocess.run([str(self.command), "help", *words], check=True, capture_output=True, text=True).stdout

    def of(self, name: str) -> Table:
        if name not in self.read:
            self.read[name] = self.table(self.help(name))
        return self.read[name]

    @staticmethod
    def table(text: str) -> Table:
        options = {
            option: bool(value)
            for names, value in re.findall(r"^  ((?:-\w, )?--[a-z-]+)(?: (\S+))?(?:  .*)?$", text, re.MULTILINE)
            for option in names.split(", ")
        }
        by_place = re.search(r"^Given by its place\n((?: .*\n)+)", text, re.MULTILINE)
        places = len(re.findall(r"^  \S", by_place[1], re.MULTILINE)) if by_place else 0
        return Table(options, 99 if by_place and "..." in text.split("usage:")[1].split("\n")[0] else places)


def complaint_of_words(words: list[str], tables: Tables, is_mention: bool) -> str:
    """What is wrong with the words after `spillway`. A mention in a sentence may leave values out."""
    if not words or words[0].startswith("-"):
        unknown = [word for word in words if word not in ("-h", "--help", "-V", "--version")]
        return f"spillway has no option {unknown[0]}" if unknown else ""
    name, *rest = words
    if not re.fullmatch(r"[a-z-]+", name):
        return ""
    if name not in tables.names:
        return f"there is no command {name}"
    table = tables.of(name)
    if "--" in rest:
        rest = rest[: rest.index("--")]
    places = 0
    while rest:
        word = rest.pop(0)
        option, equals, _ = word.partition("=")
        if not option.startswith("-") or option == "-":
            places += 1
            continue
        if option not in table.options:
            return f"spillway {name} has no option {option}"
        takes_value = table.options[option]
        if equals and not takes_value:
            return f"spillway {name} {option} takes no value"
        if takes_value and not equals:
            if rest and not rest[0].startswith("-"):
                rest.pop(0)
            elif not is_mention:
                return f"spillway {name} {option} needs a value"
    return f"spillway {name} takes fewer files or words" if table.places == 0 and places and not is_mention else ""


def commands_of(words: list[str]) -> Iterator[list[str]]:
    """The commands of a line, each without the variables that are set for it."""
    part: list[str] = []
    for word in [*words, ";"]:
        if word in SHELL_OPERATORS:
            while part and ASSIGNMENT.match(part[0]):
                part.pop(0)
            if part:
                yield part
            part = []
        else:
            part.append(word)


def split(line: str) -> list[str]:
    """As a shell does, with what pages write around words: [--option], (a | b) and three dots."""
    line = re.sub(r"(^|\s)[<>&\d]*>>?\s*\S+", " ", re.sub(r"<\(([^)]*)\)", r"; \1 ;", line))
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # prose, or half of a quotation
        return []
    return [word.strip("[]()") for word in words if word.strip("[]()") and not PLACEHOLDER.search(word)]


def lines_of(code: Code) -> Iterator[tuple[int, str]]:
    """Lines of a block, continued ones joined, without the prompt."""
    joined, start = "", 0
    for number, line in enumerate(code.text.split("\n")):
        start = start if joined else number
        joined += line.rstrip("\\").strip() + " "
        if not line.endswith("\\"):
            yield code.line + start, joined.strip().removeprefix("$ ")
            joined = ""


def complaint_of_script(words: list[str]) -> str:
    found = SCRIPT.fullmatch(words[0])
    if found is None:
        return ""
    script = ROOT / found[1]
    if not script.exists():
        return f"there is no {found[1]}"
    beside = [ROOT / "scripts" / {"prove": "proving", "docs": "pages"}.get(script.name, "none")]
    sources = [script] if script.is_file() else []
    sources += [file for folder in beside for file in folder.rglob("*.py")]
    if script.name == "lint":
        sources.append(ROOT / "scripts/lint.py")
    text = "".join(file.read_text(errors="replace") for file in sources)
    for word in words[1:]:
        if word == "--":
            break
        if word.startswith("--") and word.split("=")[0] not in text and word != "--help":
            return f"{found[1]} has no option {word}"
    return ""


def complaint_of_command(words: list[str], tables: Tables, is_mention: bool) -> str:
    name = Path(words[0]).name
    if words[0] in ("python", "python3") or words[0].endswith(("/python", "/python3")):
        words = [word for word in words[1:] if word not in ("-m",)] or words
    if name == "spillway":
        return complaint_of_words(words[1:], tables, is_mention)
    if name == "source" and len(words) > 1:
        return complaint_of_command(words[1:], tables, is_mention)
    return complaint_of_script(words)


def complaint_of_python(text: str, names: set[str]) -> str:
    """Three dots and what begins in the middle are Python too; a prompt of a notebook is not."""
    if re.search(r"^%", text, re.MULTILINE):
        return ""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError as error:
        return f"is no Python: {error.msg}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "spillway":
            if node.attr not in names:
                return f"spillway has no {node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "spillway":
            path = ROOT / "python" / Path(*node.module.split("."))
            if not path.is_dir() and not path.with_suffix(".py").is_file():
                return f"there is no module {node.module}"
    return ""


@cache
def names_of_package() -> set[str]:
    tree = ast.parse((ROOT / "python/spillway/__init__.py").read_text())
    lists = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return set(lists[0]) | {path.stem for path in (ROOT / "python/spillway").iterdir()}


@cache
def settings() -> set[str]:
    """The rows of abi/options.inc."""
    return set(re.findall(r"^\s*SPW_OPTION\w*\((\w+)", (ROOT / "abi/options.inc").read_text(), re.MULTILINE))


SOURCES = ["abi", "allocator", "bench", "cli", "cmake", "driver", "estimator", "offload", "python", "sim", "tests"]


@cache
def variables() -> set[str]:
    """What the sources name, tests' and scripts' included."""
    listed = subprocess.run(
        ["grep", "-rhoE", "--include=*.cpp", "--include=*.h", "--include=*.py", "--include=*.txt", "--include=*.cmake"]
        + ["SPILLWAY_[A-Z_]+", str(ROOT / "CMakeLists.txt"), *[str(ROOT / name) for name in SOURCES]],
        capture_output=True,
        text=True,
    )
    return set(listed.stdout.split())


def complaint_of_text(text: str) -> str:
    for name in re.findall(r"\bSPILLWAY_[A-Z_]*[A-Z]\b", text):
        if name not in variables():
            return f"nothing reads {name}"
    for value in re.findall(r"SPILLWAY_CONF=[\"']?([^\s\"'`]+)", text):
        for pair in value.split(","):
            key = pair.split(":")[0]
            if re.fullmatch(r"[a-z_]+", key) and key not in settings():
                return f"there is no setting {key}"
    return ""


def complaints(code: Code, tables: Tables) -> Iterator[tuple[int, str]]:
    if said := complaint_of_text(code.text):
        yield code.line, said
    if code.is_block and code.language == "python":
        if said := complaint_of_python(code.text, names_of_package()):
            yield code.line, said
        return
    if code.language not in ("", "text", "bash", "sh", "console"):
        return
    lines = list(lines_of(code))
    for (line, text), (_, below) in zip(lines, [*lines[1:], (0, "")], strict=True):
        if below.startswith("spillway: "):  # shown for its mistake
            continue
        for words in commands_of(split(text)):
            if said := complaint_of_command(words, tables, not code.is_block):
                yield line, said
    for name in re.findall(r"(?<![\w./@-])spillway\.([a-z_]+)\(", code.text):
        if name not in names_of_package():
            yield code.line, f"spillway has no {name}"


def wrong_commands(pages: list[Path], command: Path) -> list[str]:
    tables = Tables(command)
    return [
        f"{page.relative_to(ROOT)}:{line}: {said}"
        for page in pages
        for code in read(page).code
        for line, said in complaints(code, tables)
    ]


if __name__ == "__main__":
    from .contents import pages

    sys.exit("\n".join(wrong_commands(pages(), Path(sys.argv[1]))))
