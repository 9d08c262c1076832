"""`spillway top` shows what processes hold, alive, stopped and dead, on any width, and its JSON is as the schema says.

usage: top_test.py SPILLWAY LIBSPILLWAY LIBCUDA SCHEMA
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from watching import MIB, Watched, eventually, watched

VALIDATOR = Draft202012Validator(json.loads(Path(sys.argv[4]).read_text()))


def document(here: Watched) -> Any:
    done = here.run("top", "--json", "--dir", here.folder)
    assert done.returncode == 0 and done.stderr == "", done
    found = json.loads(done.stdout)
    VALIDATOR.validate(found)
    return found


def process_of(here: Watched, pid: int) -> Any:
    rows = [row for row in document(here)["processes"] if row["process_id"] == pid]
    return rows[0] if rows else None


def allocated_of(process: dict[str, Any]) -> int:
    return int(process["devices"][0]["stats"]["allocated_bytes"]["all"]["current"])


def test_json(here: Watched) -> None:
    with here.program(100) as first, here.program(50) as second:
        eventually(lambda: len(document(here)["processes"]) == 2, "two processes")
        for process, mib in (first, 100), (second, 50):
            eventually(lambda p=process: process_of(here, p.pid)["rates_over_seconds"] > 0, "rates")  # type: ignore[misc]
            eventually(lambda p=process, n=mib: allocated_of(process_of(here, p.pid)) >= n * MIB, "the block")  # type: ignore[misc]
            stats = process_of(here, process.pid)["devices"][0]["stats"]
            reserved = stats["reserved_bytes"]["all"]["current"]
            split = stats["inactive_split_bytes"]["all"]["current"]
            active = stats["active_bytes"]["all"]["current"]
            assert active >= mib * MIB
            assert reserved == active + split + stats["cached_free_bytes"]
            eventually(
                lambda p=process: process_of(here, p.pid)["devices"][0]["rates"]["allocations_per_second"] > 0,  # type: ignore[misc]
                "allocations",
            )
    # Nothing the schema says may be missing.
    incomplete = document(here)
    del incomplete["processes"][0]["devices"][0]["stats"]["pending_bytes"]
    assert not VALIDATOR.is_valid(incomplete)


def test_states(here: Watched) -> None:
    with here.program(60) as process:
        eventually(lambda: process_of(here, process.pid) is not None, "the page")
        # It comes with the device, and what is allocated with the next look.
        eventually(lambda: allocated_of(process_of(here, process.pid)) >= 60 * MIB, "the block")
        assert process_of(here, process.pid)["state"] == "running"
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: process_of(here, process.pid)["state"] == "stopped", "stopped")
        assert allocated_of(process_of(here, process.pid)) >= 60 * MIB
        process.kill()
        process.wait()
        dead = process_of(here, process.pid)
        assert dead["state"] == "ended"
        assert allocated_of(dead) >= 60 * MIB
        assert "as of" in here.run("top", "--once", "--dir", here.folder).stdout


def test_widths(here: Watched) -> None:
    with here.program(60) as process:
        eventually(lambda: process_of(here, process.pid) is not None, "the page")
        for locale, bar in ("C.UTF-8", "█"), ("C", "#"):
            for columns in 40, 61, 80, 200:
                done = here.run("top", "--once", "--dir", here.folder, COLUMNS=str(columns), LC_ALL=locale)
                lines = done.stdout.splitlines()
                assert done.returncode == 0 and lines and bar in done.stdout, done
                assert max(map(len, lines)) <= columns, (columns, lines)
                # Nothing is lost by it.
                for word in "active", "inactive split", "driver calls", "ladder", "fragmentation":
                    assert word in done.stdout
                assert "\x1b" not in done.stdout


def screen_of(here: Watched, columns: int, rows: int, **more: str) -> bytes:
    """What the full screen draws on a terminal of this size, which grows by ten columns meanwhile."""
    mine, its = pty.openpty()
    ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = here.environment() | {"TERM": "xterm", "LC_ALL": "C.UTF-8"} | more
    with subprocess.Popen(
        [here.command, "top", "--dir", here.folder, "--interval", "3600"],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(its)
        seen = b""
        while b"\x1b[J" not in seen:
            seen += os.read(mine, 65536)
        first = seen
        ioctl(mine, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns + 10, 0, 0))
        process.send_signal(signal.SIGWINCH)
        while seen.count(b"\x1b[J") < 2:
            seen += os.read(mine, 65536)
        os.write(mine, b"q")
        time.sleep(0.1)
        rest = os.read(mine, 65536)
        assert process.wait(60) == 0
        # The terminal is given back as it was.
        assert b"\x1b[?1049l" in seen + rest
    os.close(mine)
    return first


def test_full_screen(here: Watched) -> None:
    with here.program(60) as process:
        eventually(lambda: process_of(here, process.pid) is not None, "the page")
        colourful = screen_of(here, 60, 30)
        assert b"\x1b[32m" in colourful
        assert b"\x1b[32m" not in screen_of(here, 60, 30, NO_COLOR="1")
        low = screen_of(here, 60, 4).decode()
        text = re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", low)
        assert "more lines" in text and text.count("\r\n") == 3, low


def test_bad_input(here: Watched) -> None:
    for words, part in (
        (["top", "999999999", "--once"], "no live page"),
        (["top", "-3"], ""),
        (["top", "--interval", "0"], "--interval"),
    ):
        done = here.run(*words, "--dir", here.folder)
        assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1, done
        assert part in done.stderr
    user = Path(here.folder) / f"spillway-{os.geteuid()}"
    user.mkdir(0o700, exist_ok=True)
    page = user / "1-1.page"
    page.write_bytes(b"SPWLIVE\0\7" + bytes(1000))
    page.chmod(0o600)
    done = here.run("top", "--once", "--dir", here.folder)
    assert done.returncode == 0 and "another version" in done.stdout.replace("\n", ""), done
    page.unlink()


def main() -> int:
    with watched(sys.argv) as here:
        for test in test_bad_input, test_json, test_states, test_widths, test_full_screen:
            test(here)
            print(f"{test.__name__}: ok", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
