"""What the writer of pickles writes, read by Python, and held against what the viewer of snapshots can read.

usage: pickle_writer_test.py SAMPLE_PROGRAM
"""

from __future__ import annotations

import pickle
import pickletools
import subprocess
import sys
from typing import Any

# The opcodes of the viewer's reader, by pickletools' names.
READ = {
    *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "EMPTY_LIST", "APPENDS", "APPEND", "EMPTY_DICT", "SETITEMS", "SETITEM", "TUPLE", "EMPTY_TUPLE"),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
}
MOST_AT_ONCE = 1000


def largest_batch(data: bytes) -> int:
    """Values between a mark and the APPENDS or SETITEMS (pairs) that takes them."""
    most = 0
    counts: list[int] = []
    for opcode, _, _ in pickletools.genops(data):
        if opcode.name == "MARK":
            counts.append(0)
        elif opcode.name in ("APPENDS", "SETITEMS", "TUPLE"):
            count = counts.pop()
            if opcode.name == "APPENDS":
                most = max(most, count)
            if opcode.name == "SETITEMS":
                most = max(most, count // 2)
            if opcode.name == "TUPLE" and counts:
                counts[-1] += 1
        elif counts and opcode.name not in ("BINPUT", "LONG_BINPUT"):
            counts[-1] += 1
    return most


def main() -> int:
    data = subprocess.run([sys.argv[1]], capture_output=True, check=True).stdout
    limits = [-(2**63), -(2**31) - 1, -(2**31), -1, 0, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**63 - 1]
    expected: dict[str, Any] = {
        "numbers": [*limits, 2**64 - 1, -0.1],
        "texts": ("", "grüße", "broken ?? ???", "x" * 1000),
        "others": [None, True, False, [], {}, ()],
        "long list": list(range(2500)),
        "large dict": {f"key {i}": i for i in range(2500)},
        "shared": [["once"]] * 4,
    }
    read = pickle.loads(data)
    assert read == expected, {key: read.get(key) for key in expected if read.get(key) != expected[key]}
    assert read["shared"][0] is read["shared"][3]
    assert data[:2] == b"\x80\x02"
    unread = {opcode.name for opcode, _, _ in pickletools.genops(data)} - READ
    assert not unread, unread
    assert largest_batch(data) == MOST_AT_ONCE, largest_batch(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
