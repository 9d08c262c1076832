"""Programs built against an earlier release work with this library.

usage: releases.py CC NM LIBRARY INCLUDE RELEASES VERSION     check it
       releases.py CC NM LIBRARY INCLUDE RELEASES VERSION --record     write down VERSION, before it is released

RELEASES holds two files for each release. N.symbols lists what it exported, with versions. N.c states what its headers
said: sizes, offsets and values as assertions, functions and callbacks as declarations. It compiles with the headers of
INCLUDE as long as a program that was built with those of N means the same. Only additions are compatible: functions,
enumerators, and members at the end of a structure that begins with its size. Releases of other minor versions before
1.0, and of other major versions after, promise nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

STRUCTURE = re.compile(r"typedef struct (\w+) \{([^}]*)\} \1;")
ENUMERATION = re.compile(r"typedef enum \w+ \{([^}]*)\} \w+;")
FUNCTION = re.compile(r'__attribute__\(\(visibility\("default"\)\)\) ([^;{]*\bspw_\w+\([^;]*\));')
CALLBACK = re.compile(r"typedef [^;{]*\(\*\s*spw_\w+\)\([^;]*\);")
MEMBER = re.compile(r"(\w+)(?:\[\d+\])?$")


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def includes(include: Path) -> str:
    headers = sorted(path.name for path in (include / "spillway").glob("*.h"))
    return "#include <stddef.h>\n\n" + "".join(f'#include "spillway/{name}"\n' for name in headers)


def preprocessed(cc: str, include: Path) -> str:
    """The declarations of the headers, one space between words."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "all.c"
        source.write_text(includes(include))
        return re.sub(r"\s+", " ", output(cc, "-E", "-P", f"-I{include}", str(source)))


def members(body: str) -> list[str]:
    found = [MEMBER.search(part.strip()) for part in body.split(";") if part.strip()]
    return [match.group(1) for match in found if match is not None]


def values(cc: str, include: Path, expressions: list[str]) -> dict[str, int]:
    """What the compiler says that they are."""
    lines = "".join(f'  printf("%lld\\n", (long long)({expression}));\n' for expression in expressions)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "values.c"
        source.write_text(f"#include <stdio.h>\n{includes(include)}int main(void) {{\n{lines}  return 0;\n}}\n")
        program = str(Path(folder) / "values")
        output(cc, f"-I{include}", "-o", program, str(source))
        return dict(zip(expressions, map(int, output(program).split()), strict=True))


def record(cc: str, include: Path, version: str) -> str:
    text = preprocessed(cc, include)
    exact: list[str] = []
    at_least: list[str] = []
    for name, body in STRUCTURE.findall(text):
        names = members(body)
        (at_least if names[:2] == ["size", "version"] else exact).append(f"sizeof({name})")
        for member in names:
            exact += [f"offsetof({name}, {member})", f"sizeof((({name}*)0)->{member})"]
    for body in ENUMERATION.findall(text):
        exact += [part.split("=")[0].strip() for part in body.split(",") if part.strip()]
    known = values(cc, include, exact + at_least)
    lines = [f'_Static_assert({what} == {known[what]}, "");' for what in exact]
    lines += [f'_Static_assert({what} >= {known[what]}, "");' for what in at_least]
    lines += [f"{declaration.strip()};" for declaration in FUNCTION.findall(text)]
    lines += CALLBACK.findall(text)
    if not (exact and at_least and FUNCTION.search(text)):
        sys.exit(f"no declarations were found in {include}")
    about = f"/* What the headers of {version} said. Written by releases.py; not to be changed once it is released. */"
    return f"{about}\n/* clang-format off */\n{includes(include)}\n" + "\n".join(lines) + "\n"


def exported(nm: str, library: Path) -> set[str]:
    names = {line.split()[-1] for line in output(nm, "-D", "--defined-only", str(library)).splitlines()}
    return {name for name in names if name.startswith("spw_")}


def is_promised(release: str, version: str) -> bool:
    numbers = version.split(".")
    return release.split(".")[: 1 if numbers[0] != "0" else 2] == numbers[: 1 if numbers[0] != "0" else 2]


def broken_declarations(cc: str, include: Path, statements: Path) -> list[str]:
    command = [cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{include}", str(statements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if "error" in line]


def changed_headers(include: Path, folder: Path, name: str, old: str, new: str) -> Path:
    """A copy of the headers in which one place reads otherwise."""
    copy = folder / f"{len(list(folder.iterdir()))}"
    (copy / "spillway").mkdir(parents=True)
    for header in (include / "spillway").glob("*.h"):
        text = header.read_text()
        if header.name == name:
            if old not in text:
                sys.exit(f"{name} has no {old!r} any more: give this test another change")
            text = text.replace(old, new, 1)
        (copy / "spillway" / header.name).write_text(text)
    return copy


def unnoticed(cc: str, include: Path, statements: Path) -> list[str]:
    """Changes that would break programs, or be harmless, and are not told apart."""
    breaking = [
        (
            "spillway.h",
            "size_t bytes, int device, spw_stream stream, void** out",
            "size_t bytes, int device, void** out",
        ),
        ("spillway.h", "SPW_BLOCK_ALLOCATED = 1", "SPW_BLOCK_ALLOCATED = 3"),
        ("spillway.h", "uint64_t requested_bytes; /*", "uint32_t requested_bytes; /*"),
        ("stats.h", "  X(allocated_bytes)        \\\n", ""),
        ("stats.h", "int64_t current;\n  int64_t peak;", "int64_t peak;\n  int64_t current;"),
        ("spillway.h", "(int device, uint64_t bytes, void* context)", "(int device, uint32_t bytes, void* context)"),
        ("offload.h", "uint64_t disk_limit_bytes;", "uint64_t renamed_bytes;"),
    ]
    harmless = [
        ("offload.h", "\n} spw_tier_stats;", "\n  uint64_t added;\n} spw_tier_stats;"),
        ("status.h", "} spw_status;", ", SPW_ERROR_ADDED = 99 } spw_status;"),
        (
            "spillway.h",
            "SPW_API const char* spw_version(void);",
            "SPW_API const char* spw_version(void); int spw_new(void);",
        ),
    ]
    wrong = []
    with tempfile.TemporaryDirectory() as scratch:
        for changes, breaks in ((breaking, True), (harmless, False)):
            for name, old, new in changes:
                headers = changed_headers(include, Path(scratch), name, old, new)
                if bool(broken_declarations(cc, headers, statements)) != breaks:
                    wrong.append(f"{name}: {old!r} to {new!r} should {'break' if breaks else 'be compatible'}")
    return wrong


def main() -> int:
    cc, nm, *rest = sys.argv[1:7]
    library, include, releases = map(Path, rest[:3])
    version = rest[3]
    statements = releases / f"{version}.c"
    symbols = exported(nm, library)
    if sys.argv[7:] == ["--record"]:
        statements.write_text(record(cc, include, version))
        statements.with_suffix(".symbols").write_text("\n".join(sorted(symbols)) + "\n")
        return 0
    kept = [path for path in sorted(releases.glob("*.symbols")) if is_promised(path.stem, version)]
    complaints = [] if kept else [f"no release of the series of {version} is in {releases}"]
    for path in kept:
        gone = set(path.read_text().split()) - symbols
        complaints += [f"{path.stem} exported {name}; this library does not" for name in sorted(gone)]
        complaints += broken_declarations(cc, include, path.with_suffix(".c"))
    if complaints:
        complaints.append(f"while {version} is not released, --record writes it down anew")
    else:
        complaints = unnoticed(cc, include, kept[-1].with_suffix(".c"))
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
