"""Makes stand-ins for the C and C++ libraries as they were in older releases, for the linker alone: what is linked with
them runs on every Linux that has glibc 2.28 and GCC 8's libstdc++ or later, as PyTorch's wheels do.

usage: make_stubs.py OUTPUT [--cc CC]

A stand-in has each function and object that the library of this machine has by a version that old, and nothing newer;
of several versions of one name, the newest of them. What is newer is undefined then, and comes from shims.c or, for
C++, from libstdc++.a. Threads and dlopen() were in libraries of their own, which programs must name: so there are
empty stand-ins for those.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# The newest version that a library may ask for, by the family of the version's name: what manylinux_2_28 allows (PEP
# 600 and the policies of auditwheel).
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
LIBRARIES = ("libc.so.6", "libm.so.6", "libstdc++.so.6")
EMPTY = ("libpthread.so.0", "libdl.so.2", "librt.so.1")
SYMBOL = re.compile(
    r"^\s*\d+:\s+[0-9a-f]+\s+(?P<size>\w+)\s+(?P<type>\w+)\s+(GLOBAL|WEAK|UNIQUE)\s+\w+\s+(?P<index>\w+)"
    r"\s+(?P<name>[^@\s]+)@@?(?P<version>\w[\w.]*)"
)


@dataclass(frozen=True)
class Symbol:
    name: str
    version: str
    kind: str  # FUNC, OBJECT, TLS, ...
    size: int


def numbers(version: str) -> tuple[str, tuple[int, ...]] | None:
    """GLIBC_2.3.4 is ("GLIBC", (2, 3, 4)); None for names without numbers, such as GLIBC_PRIVATE."""
    family, _, rest = version.partition("_")
    return (family, tuple(map(int, rest.split(".")))) if re.fullmatch(r"\d+(\.\d+)*", rest) else None


def is_old(version: str) -> bool:
    split = numbers(version)
    return split is not None and split[0] in NEWEST and split[1] <= NEWEST[split[0]]


def symbols_of(library: Path) -> list[Symbol]:
    """Those of an old version, each once."""
    command = ["readelf", "--dyn-syms", "--wide", str(library)]
    newest: dict[str, Symbol] = {}
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        match = SYMBOL.match(line)
        if match is None or match["index"] in ("UND", "ABS") or not is_old(match["version"]):
            continue
        found = Symbol(match["name"], match["version"], match["type"], int(match["size"], 0))
        known = newest.get(found.name)
        if known is None or (numbers(known.version) or ("", ())) < (numbers(found.version) or ("", ())):
            newest[found.name] = found
    return sorted(newest.values(), key=lambda symbol: symbol.name)


# By kind: the section, the type as the assembler writes it.
KINDS = {
    "OBJECT": (".data", "@object"),
    "TLS": ('.section .tdata,"awT",@progbits', "@tls_object"),
}
FUNCTION = (".text", "@function")


def assembly(symbols: list[Symbol]) -> str:
    lines = ['.section .note.GNU-stack,"",@progbits']
    for number, symbol in enumerate(symbols):
        section, kind = KINDS.get(symbol.kind, FUNCTION)
        lines += [
            section,
            *([".balign 32"] if symbol.kind in KINDS else []),  # as any object may need where a program copies it
            f".globl stub_{number}",
            f".type stub_{number}, {kind}",
            f".size stub_{number}, {symbol.size}",
            f"stub_{number}:",
            f".skip {max(symbol.size, 1) if symbol.kind in KINDS else 1}",
            f".symver stub_{number}, {symbol.name}@@{symbol.version}",
        ]
    return "\n".join(lines) + "\n"


def version_script(symbols: list[Symbol]) -> str:
    versions = sorted({symbol.version for symbol in symbols}, key=lambda version: numbers(version) or ("", ()))
    return "\n".join(f"{version} {{ local: stub_*; }};" for version in versions) + "\n"


def make(cc: str, output: Path, soname: str, symbols: list[Symbol]) -> None:
    source, script = output / f"{soname}.S", output / f"{soname}.map"
    source.write_text(assembly(symbols))
    script.write_text(version_script(symbols))
    options = ["-shared", "-nostdlib", f"-Wl,-soname,{soname}"]
    if symbols:
        options.append(f"-Wl,--version-script={script}")
    subprocess.run([cc, *options, "-o", str(output / soname), str(source)], check=True)


def where(cc: str, file: str) -> Path:
    found = subprocess.run([cc, f"-print-file-name={file}"], capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        sys.exit(f"make_stubs: {cc} does not find {file}")
    return Path(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--cc", default="cc")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for soname in LIBRARIES:
        make(options.cc, options.output, soname, symbols_of(where(options.cc, soname)))
    for soname in EMPTY:
        make(options.cc, options.output, soname, [])
    folder = options.output.resolve()
    # -lc and -lm find these: in front of the compiler's own.
    nonshared = where(options.cc, "libc_nonshared.a")
    loader = where(options.cc, "ld-linux-x86-64.so.2")
    old_threads = " ".join(f'"{folder / soname}"' for soname in EMPTY)
    (folder / "libc.so").write_text(
        f'GROUP ( "{folder / "libc.so.6"}" {old_threads} "{nonshared}" AS_NEEDED ( "{loader}" ) )\n'
    )
    (folder / "libm.so").write_text(f'GROUP ( "{folder / "libm.so.6"}" )\n')
    # New parts of the C++ library come from its archive, which is asked second.
    archive = where(options.cc, "libstdc++.a")
    (folder / "libstdc++.so").write_text(f'GROUP ( "{folder / "libstdc++.so.6"}" "{archive}" )\n')


if __name__ == "__main__":
    main()
