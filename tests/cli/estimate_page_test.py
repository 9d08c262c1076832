"""The charts of `spillway estimate --html` are as wide as the page, on a screen and on a phone.

usage: estimate_page_test.py SPILLWAY CHROMIUM RUN
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
# Chromium's windows are no narrower than 500 pixels, so the page is looked at in a frame.
FRAME = """<body><iframe style="width:{width}px;height:2000px;border:0" srcdoc="{page}"></iframe><script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const ends = [...page.querySelectorAll(".chart, .chart svg, .chart text, .chart rect, .legend span")]
    .map(each => each.getBoundingClientRect()).map(box => [box.left, box.right]);
  const boxes = (what) => [...page.querySelectorAll(what)].map(each => each.getBoundingClientRect());
  const onBars = boxes(".chart text").filter(text => boxes(".chart rect").some(bar => text.left < bar.right &&
    bar.left < text.right && text.top < bar.bottom && bar.top < text.bottom)).length;
  const rows = [...page.querySelectorAll(".row")].filter(row => row.querySelector("rect"));
  const unnamed = rows.filter(row => !/: [0-9.]+ GiB$/.test(row.querySelector("span").textContent)).length;
  document.body.dataset.found = JSON.stringify({{ends, onBars, rows: rows.length, unnamed,
    width: page.documentElement.scrollWidth, inner: page.querySelectorAll(".scroll .chart").length,
    bars: page.querySelectorAll(".chart rect").length}});
}}</script>"""


def found(chromium: str, page: str, width: int, folder: Path) -> dict[str, list[list[float]] | float]:
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(width=width, page=html.escape(page)))
    command = [chromium, *FLAGS, f"--user-data-dir={folder}/profile", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [*command, "--window-size=1600,2000", "--dump-dom", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    match = re.search(r'data-found="([^"]*)"', done.stdout)
    assert match, done.stdout
    seen: dict[str, list[list[float]] | float] = json.loads(html.unescape(match[1]))
    return seen


def main() -> int:
    spillway, chromium, run = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        # The sizes of three of these GPUs are on the axis, two of them side by side.
        command = [spillway, "estimate", run, "--gpu", "v100-32,a100-40,l40s,h100-80", "--html", str(page)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 2), done.stderr
        for width in (360, 400, 1400):
            seen = found(chromium, page.read_text(), width, Path(folder))
            assert seen["width"] == width, f"the page of {width} pixels is {seen['width']} wide"
            assert seen["inner"] == 0 and seen["bars"], seen
            # A figure on a bar of several parts would seem to be that of the part it lies on.
            assert seen["onBars"] == 0 and seen["rows"] and seen["unnamed"] == 0, seen
            ends = seen["ends"]
            assert isinstance(ends, list)
            assert all(left >= 0 and right <= width for left, right in ends), (width, ends)
    return 0


if __name__ == "__main__":
    sys.exit(main())
