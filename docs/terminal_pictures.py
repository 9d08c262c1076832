#!/usr/bin/env python3
"""Makes docs/pictures/top.svg: the screen of `spillway top`, as it draws it, for two processes on the simulated device.

usage: docs/top_picture.py [BUILD]    (default: build/release)
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
from fcntl import ioctl
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cli" / "live"))
from watching import watched  # noqa: E402

COLUMNS, ROWS = 92, 24
COLOURS = {"32": "#3fb950", "33": "#d29922", "34": "#58a6ff", "31": "#f85149", "2": "#8b949e"}
WIDTH, HEIGHT = 8.4, 18


def screen(command: str, folder: str, environment: dict[str, str]) -> str:
    """The bytes of the second drawing: by then there are rates."""
    mine, its = pty.openpty()
    ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = environment | {"TERM": "xterm", "LC_ALL": "C.UTF-8"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [command, "top", "--dir", folder], stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True
    ) as process:
        seen = b""
        while seen.count(b"\x1b[J") < 2:
            seen += os.read(mine, 65536)
        os.write(mine, b"q")
        process.wait(60)
    os.close(its)
    os.close(mine)
    return seen.split(b"\x1b[J")[1].decode()


def svg(drawn: str) -> str:
    """Text with colours, one element for each run of a colour."""
    lines = re.sub(r"\x1b\[[HK]", "", drawn).split("\r\n")
    width, height = COLUMNS * WIDTH + 24, len(lines) * HEIGHT + 24
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
    with watched(words) as here, here.program(2300), here.program(900):
        time.sleep(3)
        drawn = screen(here.command, here.folder, here.environment())
    picture = ROOT / "docs" / "pictures" / "top.svg"
    picture.parent.mkdir(exist_ok=True)
    picture.write_text(svg(drawn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
