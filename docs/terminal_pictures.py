#!/usr/bin/env python3
"""Makes the pictures of terminals in docs/pictures/, of what the command draws there: `spillway top` of processes on
the simulated device, on a terminal of 80 x 24 characters and on one of 200 x 50, and its help.

usage: docs/terminal_pictures.py [BUILD]    (default: build/release)
"""

from __future__ import annotations

import html
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import ExitStack
from fcntl import ioctl
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cli" / "live"))
from watching import watched  # noqa: E402

TOP = {"top.svg": (80, 24), "top-wide.svg": (200, 50)}  # columns and rows
HELP = {"help.svg": ["help"], "help-report.svg": ["help", "report"]}
LARGEST_PROGRAMS = (2300, 900, 400)  # MiB at least
COLOURS = {"32": "#3fb950", "33": "#d29922", "34": "#58a6ff", "31": "#f85149", "2": "#8b949e"}
WIDTH, HEIGHT = 8.4, 18


def drawn(words: list[str], environment: dict[str, str], columns: int, rows: int) -> str:
    """What a command writes to a terminal of this size. Of `top` it is the second drawing: by then there are rates."""
    mine, its = pty.openpty()
    ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = environment | {"TERM": "xterm", "LC_ALL": "C.UTF-8"}
    environment.pop("NO_COLOR", None)
    is_live = words[1] == "top"
    with subprocess.Popen(words, stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True) as process:
        os.close(its)
        seen = b""
        try:
            while seen.count(b"\x1b[J") < 2:
                seen += os.read(mine, 65536)
        except OSError:  # it ended
            pass
        if is_live:
            os.write(mine, b"q")
        process.wait(60)
    os.close(mine)
    return seen.decode().split("\x1b[J")[1 if is_live else 0]


def svg(text: str, columns: int) -> str:
    """Text with colours, one element for each run of a colour."""
    lines = re.sub(r"\x1b\[[HK]", "", text).rstrip("\r\n").split("\r\n")
    width, height = columns * WIDTH + 24, len(lines) * HEIGHT + 24
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" font-size="14" '
        f'font-family="monospace" fill="#e6edf3"><rect width="100%" height="100%" rx="8" fill="#0d1117"/>'
    ]
    for number, line in enumerate(lines):
        column = 0
        for style, text in re.findall(r"(?:\x1b\[(\d+)m)?([^\x1b]+)(?:\x1b\[0m)?", line):
            look = f' fill="{COLOURS[style]}"' if style in COLOURS else ' font-weight="bold"' if style == "1" else ""
            out.append(
                f'<text x="{12 + column * WIDTH:.1f}" y="{12 + (number + 0.8) * HEIGHT:.1f}" xml:space="preserve" '
                f'textLength="{len(text) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"{look}>{html.escape(text)}</text>'
            )
            column += len(text)
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    build = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "release"
    words = ["", str(build / "bin/spillway"), str(build / "lib/libspillway.so"), str(build / "lib/sim/libcuda.so.1")]
    pictures = ROOT / "docs" / "pictures"
    with watched(words) as here, ExitStack() as programs:
        for size in LARGEST_PROGRAMS:
            programs.enter_context(here.program(size))
        time.sleep(3)
        for name, (columns, rows) in TOP.items():
            text = drawn([here.command, "top", "--dir", here.folder], here.environment(), columns, rows)
            (pictures / name).write_text(svg(text, columns))
        for name, asked in HELP.items():
            text = drawn([here.command, *asked], here.environment(), 80, 24)
            (pictures / name).write_text(svg(text, 80))
    return 0


if __name__ == "__main__":
    sys.exit(main())
