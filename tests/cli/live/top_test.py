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
import tempfile
import termios
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
        with tempfile.TemporaryDirectory() as folder:
            into = Path(folder) / "top.json"
            done = here.run("top", "--json", "--dir", here.folder, "--output", str(into))
            assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
            written = {process["process_id"] for process in json.loads(into.read_text())["processes"]}
            assert written == {first.pid, second.pid}
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
        assert "as of" in here.run("top", str(process.pid), "--once", "--dir", here.folder).stdout


def test_ended_ones_are_one_line(here: Watched) -> None:
    with here.program(60) as first, here.program(60) as second, here.program(60) as third:
        processes = (first, second, third)
        for process in processes:
            eventually(lambda p=process: process_of(here, p.pid) is not None, "the page")  # type: ignore[misc]
        for process in first, second:
            process.kill()
            process.wait()
        states = {row["process_id"]: row["state"] for row in document(here)["processes"]}
        dead = len([state for state in states.values() if state == "ended"])
        assert dead >= 2 and states[third.pid] == "running", states
        text = here.run("top", "--once", "--dir", here.folder).stdout
        assert f"{dead} ended (--json, or a PID, shows)" in text, text
        assert f"PID {third.pid} " in text and f"PID {first.pid} " not in text and "as of" not in text, text
        alone = here.run("top", str(first.pid), "--once", "--dir", here.folder).stdout
        assert f"PID {first.pid} " in alone and "as of" in alone, alone


def test_widths(here: Watched) -> None:
    with here.program(60) as process:
        eventually(lambda: process_of(here, process.pid) is not None, "the page")
        eventually(lambda: allocated_of(process_of(here, process.pid)) >= 60 * MIB, "the block")
        for locale, bar in ("C.UTF-8", "[█▉▊▋▌▍▎▏]"), ("C", r"\[[#=.][#=. ]*\]"):
            for columns in 40, 61, 80, 200:
                done = here.run("top", "--once", "--dir", here.folder, COLUMNS=str(columns), LC_ALL=locale)
                lines = done.stdout.splitlines()
                assert done.returncode == 0 and lines and re.search(bar, done.stdout), done
                assert max(map(len, lines)) <= columns, (columns, lines)
                # Nothing is lost by it.
                for word in "active", "inactive split", "driver calls", "ladder", "fragmentation":
                    assert word in done.stdout
                assert "\x1b" not in done.stdout


class Screen:
    """The full screen on a terminal of this size."""

    def __init__(self, here: Watched, columns: int, rows: int, **more: str) -> None:
        self.terminal, its = pty.openpty()
        self.resize(columns, rows)
        environment = here.environment() | {"TERM": "xterm", "LC_ALL": "C.UTF-8"} | more
        self.process = subprocess.Popen(
            [here.command, "top", "--dir", here.folder, "--interval", "3600"],
            stdin=its,
            stdout=its,
            stderr=its,
            env=environment,
            start_new_session=True,
        )
        os.close(its)
        self.seen = b""
        self.drawn = self.next()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)

    def resize(self, columns: int, rows: int) -> None:
        ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def next(self) -> str:
        """The next drawing, whole."""
        while b"\x1b[J" not in self.seen:
            self.seen += os.read(self.terminal, 65536)
        drawn, self.seen = self.seen.split(b"\x1b[J", 1)
        return drawn.decode()

    def press(self, *keys: str) -> str:
        """What is drawn after them, without colours."""
        for key in keys:
            os.write(self.terminal, key.encode())
            self.drawn = self.next()
        return re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", self.drawn)

    def quit(self) -> None:
        os.write(self.terminal, b"q")
        assert self.process.wait(60) == 0
        # The terminal is given back as it was.
        assert b"\x1b[?1049l" in self.seen + os.read(self.terminal, 65536)


def test_full_screen(here: Watched) -> None:
    with here.program(60) as process:
        eventually(lambda: process_of(here, process.pid) is not None, "the page")
        eventually(lambda: allocated_of(process_of(here, process.pid)) >= 60 * MIB, "the block")
        with Screen(here, 60, 30) as screen:
            assert "\x1b[32m" in screen.drawn
            screen.resize(70, 30)
            screen.process.send_signal(signal.SIGWINCH)
            screen.next()
            screen.quit()
        with Screen(here, 60, 30, NO_COLOR="1") as screen:
            assert "\x1b[32m" not in screen.drawn
        for columns, rows in (60, 4), (80, 24), (200, 50):
            with Screen(here, columns, rows) as screen:
                lines = [line.rstrip("\r") for line in screen.press("h", "h").split("\n")]
                assert len(lines) <= rows and max(map(len, lines)) <= columns, lines
                assert rows > 4 or "more lines" in "".join(lines), lines
                if columns == 200:  # bars are as wide as the screen
                    assert max(line.count("█") + line.count(" ") for line in lines) > 150, lines


def test_keys(here: Watched) -> None:
    with here.program(60) as first, here.program(200) as second:
        for process in first, second:
            eventually(lambda p=process: process_of(here, p.pid) is not None, "the page")  # type: ignore[misc]
            eventually(lambda p=process: allocated_of(process_of(here, p.pid)) >= 60 * MIB, "the block")  # type: ignore[misc]
        dead = len([row for row in document(here)["processes"] if row["state"] == "ended"])
        with Screen(here, 100, 40) as screen:
            text = screen.press("\x1b[A")
            assert "2 running" in text and "by reserved" in text and f"> {second.pid:>8}" in text, text
            assert f"{dead} ended" in text and " ended, as of" not in text, text
            assert " ended, as of" in screen.press("e") and " ended, as of" not in screen.press("e")
            assert f"> {first.pid:>8}" in screen.press("\x1b[B") and f"> {second.pid:>8}" in screen.press("\x1b[A")
            assert "by active" in screen.press("s")
            assert "k        end the chosen process" in screen.press("h")
            screen.press("h")
            text = screen.press("/", *str(first.pid), "\r")
            assert f"filter: {first.pid}" in text and "1 running" in text and f"> {first.pid:>8}" in text, text
            # No answer but yes ends a process.
            assert f"end process {first.pid}" in screen.press("k")
            screen.press("n")
            assert first.poll() is None
            assert f"process {first.pid} was told to end" in screen.press("k", "y")
            first.wait(60)
            screen.quit()
        assert second.poll() is None


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
        for test in (
            test_bad_input,
            test_json,
            test_states,
            test_ended_ones_are_one_line,
            test_widths,
            test_full_screen,
            test_keys,
        ):
            test(here)
            print(f"{test.__name__}: ok", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
