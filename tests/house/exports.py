"""A shipped library exports the C ABI and nothing else, and needs neither libcuda nor cudart to be there.

usage: exports.py NM READELF LIBRARY
"""

from __future__ import annotations

import re
import subprocess
import sys

ALLOWED = re.compile(r"^(spw_\w+|SPILLWAY_[0-9.]+)$")
FORBIDDEN_LIBRARY = re.compile(r"lib(cuda|cudart|nvidia)\b")


def output(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> int:
    nm, readelf, library = sys.argv[1:]
    names = {line.split()[-1].split("@")[0] for line in output(nm, "-D", "--defined-only", library)}
    complaints = [f"exports {name}" for name in sorted(names) if not ALLOWED.match(name)]
    if not any(name.startswith("spw_") for name in names):
        complaints.append("exports no spw_ function")
    for line in output(readelf, "-d", library):
        if "(NEEDED)" in line and FORBIDDEN_LIBRARY.search(line):
            complaints.append(f"needs {line.split()[-1]}")
    for complaint in complaints:
        print(f"{library}: {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
