"""libspillway exports exactly what its headers declare, under its version, with the right SONAME.

usage: exports_match_header.py NM READELF LIBRARY SONAME HEADER...
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> int:
    nm, readelf, library, soname, *headers = sys.argv[1:]
    text = "".join(Path(header).read_text() for header in headers)
    declared = set(re.findall(r"^SPW_API [^;(]*?\b(spw_\w+)\(", text, re.MULTILINE))
    symbols = [line.split()[-1] for line in output(nm, "-D", "--defined-only", library).splitlines()]
    exported = {symbol.split("@")[0] for symbol in symbols if symbol.startswith("spw_")}
    complaints = [f"declared, not exported: {name}" for name in sorted(declared - exported)]
    complaints += [f"exported, not declared: {name}" for name in sorted(exported - declared)]
    if not declared:
        complaints.append(f"no declaration was found in {headers}")
    complaints += [
        f"not of a version: {symbol}" for symbol in symbols if symbol.startswith("spw_") and "@@SPILLWAY_" not in symbol
    ]
    if f"[{soname}]" not in output(readelf, "-d", library):
        complaints.append(f"the SONAME is not {soname}")
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
