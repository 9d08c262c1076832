"""libspillway exports exactly what spillway.h declares, under its version, with the right SONAME.

usage: exports_match_header.py HEADER NM READELF LIBRARY SONAME
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> int:
    header, nm, readelf, library, soname = sys.argv[1:]
    declared = set(re.findall(r"^SPW_API [^;(]*?\b(spw_\w+)\(", Path(header).read_text(), re.MULTILINE))
    symbols = [line.split()[-1] for line in output(nm, "-D", "--defined-only", library).splitlines()]
    exported = {symbol.split("@")[0] for symbol in symbols if symbol.startswith("spw_")}
    complaints = [f"declared, not exported: {name}" for name in sorted(declared - exported)]
    complaints += [f"exported, not declared: {name}" for name in sorted(exported - declared)]
    if not declared:
        complaints.append(f"no declaration was found in {header}")
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
