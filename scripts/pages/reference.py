"""The reference that is made of the sources: the command's of its help, Python's of docstrings, C's of the headers."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from .contents import ROOT

PACKAGE = ROOT / "python" / "spillway"
HEADERS = ["spillway.h", "offload.h", "pinned.h", "stats.h", "torch.h", "status.h"]


def asked(command: Path, *words: str) -> str:
    return subprocess.run([str(command), *words], check=True, capture_output=True, text=True).stdout


def commands_of(command: Path) -> list[str]:
    """In the order of the help, by its two columns."""
    return re.findall(r"^  ([a-z][a-z-]+)  ", asked(command, "help").split("Help\n")[0], re.MULTILINE)


def commands(command: Path) -> str:
    parts = ["# All commands\n\nWhat `spillway help` says of each. [How options are written](command.md).\n"]
    for name in commands_of(command):
        text = "\n".join(f"    {line}".rstrip() for line in asked(command, "help", name).rstrip().splitlines())
        parts.append(f"\n## {name}\n\n{text}\n")
    return "".join(parts)


def module_of(name: str, level: int, of: Path) -> Path:
    folder = of.parent
    for _ in range(level - 1):
        folder = folder.parent
    path = folder.joinpath(*name.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.FunctionDef):
        answer = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{node.name}({ast.unparse(node.args)}){answer}"
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    return f"class {node.name}{bases}"


def of_node(node: ast.FunctionDef | ast.ClassDef) -> str:
    heading = f"\n## {node.name}\n\n```python\n{signature(node)}\n```\n\n{docstring(node)}\n"
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_") and ast.get_docstring(member):
                heading += f"\n```python\n{signature(member)}\n```\n\n{docstring(member)}\n"
    return heading


def docstring(node: ast.FunctionDef | ast.ClassDef | ast.Module) -> str:
    """Blocks that are indented below the text stay so, and are code in Markdown too."""
    return linked(re.sub(r"::$", ":", ast.get_docstring(node) or "", flags=re.MULTILINE))


def linked(text: str) -> str:
    """The pages that it names, as links."""
    return re.sub(r"(?<![\w`\[(/])docs/([\w/-]+\.md)", r"[docs/\1](\1)", text)


def python(_: Path) -> str:
    source = PACKAGE / "__init__.py"
    tree = ast.parse(source.read_text())
    places = {
        alias.asname or alias.name: (module_of(node.module, node.level, source), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    names = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    parts = [f"# Python: the module spillway\n\n{docstring(tree)}\n"]
    for name in names:
        if name not in places:
            continue
        path, own_name = places[name]
        found = [
            node
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == own_name
        ]
        parts.append(of_node(found[0]))
    return "".join(parts)


def pieces(text: str) -> list[tuple[str, str]]:
    """A header as pairs: a comment, and the declarations below it up to the next comment or empty line."""
    found: list[tuple[str, str]] = []
    comment: list[str] = []
    code: list[str] = []
    depth, in_comment = 0, False

    def close() -> None:
        if comment or code:
            found.append(("\n".join(comment), "\n".join(code)))
        comment.clear()
        code.clear()

    for line in text.splitlines():
        if in_comment or (depth == 0 and line.startswith("/*")):
            if not in_comment:
                close()
            comment.append(re.sub(r"^(/\*| \*(?!/)) ?|\s*\*/$", "", line))
            in_comment = "*/" not in line
        elif line.strip() or depth:
            code.append(line)
            depth += line.count("{") - line.count("}")
        else:
            close()
    close()
    return found


def prose(comment: str) -> str:
    """Lines that are set further in are a table of what stands beside what."""
    text = re.sub(r"(?m)^ {3}(?=\S)", "    ", comment)
    text = re.sub(r"(?m)(^(?! {4}).*\S\n)(?= {4}\S)", r"\1\n", text)
    return re.sub(r"(?m)^(?! {4}).*", lambda line: line[0].replace("<", "&lt;"), linked(text))


def declared(text: str) -> str:
    """A header without what the compiler alone is told: its guard, its includes, and what is C++'s."""
    text = re.sub(r"(?ms)^#if(def __cplusplus| defined\(__GNUC__\))$.*?^#endif$", "", text)
    text = re.sub(
        r"(?m)^#(ifndef|define) SPILLWAY_(\w+_)?H$|^#include.*$|^#endif.*$|^/\* clang-format o.*\*/$", "", text
    )
    return text.replace("SPW_API ", "")


def c(_: Path) -> str:
    parts = ["# C: the headers\n\nWhat the headers of `include/spillway/` say, in their order.\n"]
    for name in HEADERS:
        parts.append(f"\n## {name}\n")
        for comment, code in pieces(declared((ROOT / "include" / "spillway" / name).read_text())):
            if section := re.match(r"-{4} (.*?)[.:]?( docs/\S+)?(?: -{4})?(?=\n|$)", comment):
                title, *more = section[1].replace(": ", ". ").split(". ", 1)
                parts.append(f"\n### {title}\n")
                comment = "".join(more) + comment[section.end() :]
            if comment.strip():
                parts.append(f"\n{prose(comment)}\n")
            if code.strip():
                parts.append(f"\n```c\n{code.strip()}\n```\n")
    return "".join(parts)


MAKERS: dict[str, Callable[[Path], str]] = {"commands": commands, "python": python, "c": c}
