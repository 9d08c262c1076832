"""The page of `spillway report --html` draws itself in a browser, without errors, network or wrong totals.

usage: page_test.py SPILLWAY CHROMIUM SNAPSHOT...
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

# No network: a host name that is looked up fails.
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
OFFLINE = ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000", "--dump-dom"]


class Totals(HTMLParser):
    """What the drawn page shows: the parts of each moment, and whether a chart and a map were drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[tuple[str, str], int] = {}
        self.drawn = False
        self.canvases = 0
        self.flame: dict[int, int] = {}  # bytes of a row of the flame graph

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("data-part"):
            self.parts[str(values["data-moment"]), str(values["data-part"])] = int(values["data-bytes"] or -1)
        if values.get("data-level"):
            level = int(values["data-level"] or 0)
            self.flame[level] = self.flame.get(level, 0) + int(values["data-bytes"] or 0)
        if tag == "body":
            self.drawn = values.get("data-drawn") == "yes"
        self.canvases += tag == "canvas"


def drawn(chromium: str, page: Path, folder: str) -> tuple[Totals, list[str]]:
    browser = [chromium, *FLAGS, f"--user-data-dir={folder}/profile", *OFFLINE, page.as_uri()]
    done = subprocess.run(browser, capture_output=True, text=True, timeout=300, check=False)
    totals = Totals()
    totals.feed(done.stdout)
    return totals, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def check_change(spillway: str, chromium: str, path: str, folder: str) -> list[str]:
    page = Path(folder) / "change.html"
    command = [spillway, "diff", path, path, "--json", "--html", str(page)]
    live = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["peaks"][1]
    totals, complaints = drawn(chromium, page, folder)
    if not totals.drawn or totals.flame.get(0) != live["after_bytes"]:
        complaints.append(f"the page of a comparison was not drawn: {totals.flame}, {live}")
    return [f"{path}: {complaint}" for complaint in complaints]


def check(spillway: str, chromium: str, path: str, folder: str) -> list[str]:
    page = Path(folder) / "page.html"
    command = [spillway, "report", path, "--json", "--html", str(page)]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    totals, complaints = drawn(chromium, page, folder)
    if not totals.drawn:
        complaints.append("the page was not drawn to its end")
    # The timeline has two canvases, the map one.
    if totals.canvases < 3:
        complaints.append(f"{totals.canvases} canvases: no timeline, or no map")
    moments = report["shown"]["moments"]
    live = next((moment for moment in moments if moment["name"] == "live peak"), moments[0])["parts"]
    if totals.flame.get(0) != live["live_bytes"] + live["pending_bytes"]:
        complaints.append(f"the flame graph is as wide as {totals.flame.get(0)}, the live peak {live}")
    if any(totals.flame[level + 1] > totals.flame[level] for level in range(len(totals.flame) - 1)):
        complaints.append(f"a row of the flame graph is wider than the one above: {totals.flame}")
    expected = {(moment["name"], part): value for moment in moments for part, value in moment["parts"].items()}
    if totals.parts != expected:
        complaints.append(f"the page shows {totals.parts}, the report {expected}")
    text = page.read_text()
    for link in re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=[^>]*>", text.split("<body>")[0]):
        complaints.append(f"the page loads {link}")
    return [f"{path}: {complaint}" for complaint in complaints]


def main() -> int:
    spillway, chromium, *paths = sys.argv[1:]
    complaints = []
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            complaints += check(spillway, chromium, path, folder)
            if path == paths[0]:
                complaints += check_change(spillway, chromium, path, folder)
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
