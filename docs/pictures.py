"""Makes the pictures of pages in docs/pictures/ by headless Chromium (Debian: chromium): on a screen of 1400 pixels and
on a phone of 400, light and dark.

usage: docs/pictures.py SPILLWAY [SNAPSHOT]

SNAPSHOT is a memory snapshot of PyTorch; without one, a dry run of the tutorial's training makes it, for which python
has to import PyTorch and Spillway. Pictures of the site are made where scripts/docs has made it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
TRAINING = [sys.executable, str(ROOT / "examples" / "tutorials" / "out_of_memory.py"), "--recompute"]
RUN = ROOT / "examples" / "estimate" / "run.toml"
SITE = ROOT / "build" / "docs" / "html" / "index.html"
SCREEN, PHONE = 1400, 400


class Shot(NamedTuple):
    page: str
    width: int
    height: int
    is_dark: bool


SHOTS = {
    "report.png": Shot("report", SCREEN, 1500, False),
    "report-dark.png": Shot("report", SCREEN, 1500, True),
    "report-phone.png": Shot("report", PHONE, 1500, False),
    "report-phone-dark.png": Shot("report", PHONE, 1500, True),
    "estimate.png": Shot("estimate", SCREEN, 1100, False),
    "estimate-phone-dark.png": Shot("estimate", PHONE, 1300, True),
    "site.png": Shot("site", SCREEN, 1000, False),
    "site-phone-dark.png": Shot("site", PHONE, 1000, True),
}


def recorded(spillway: str, folder: Path) -> Path:
    snapshot = folder / "training.pickle"
    command = [spillway, "dryrun", "--gpu-memory", "8GiB", "--out", str(snapshot), "--", *TRAINING]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return snapshot


def pages(spillway: str, snapshot: Path, folder: Path) -> dict[str, Path]:
    made = {"report": folder / "report.html", "estimate": folder / "estimate.html"}
    for words in (["report", str(snapshot)], ["estimate", str(RUN), "--gpu", "h100-80,a100-40"]):
        command = [spillway, *words, "--html", str(made[words[0]])]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if done.returncode not in (0, 2):
            sys.exit(f"pictures.py: failed: {' '.join(command)}")
    return made | ({"site": SITE} if SITE.is_file() else {})


def picture(chromium: str, page: Path, shot: Shot, folder: Path, output: Path) -> None:
    """Chromium's windows are no narrower than 500 pixels, so a page is shown in a frame of its width."""
    frame = folder / "frame.html"
    style = f"width:{shot.width}px;height:{shot.height}px;border:0;display:block"
    frame.write_text(f'<body style="margin:0"><iframe src="{page.as_uri()}" style="{style}"></iframe>')
    subprocess.run(
        [
            chromium,
            *(["--blink-settings=preferredColorScheme=0"] if shot.is_dark else []),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
            f"--window-size={shot.width},{shot.height}",
            "--virtual-time-budget=20000",
            f"--screenshot={output}",
            frame.as_uri(),
        ],
        check=True,
        timeout=300,
        stderr=subprocess.DEVNULL,
    )


def main() -> int:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("pictures.py: chromium was not found; Debian: apt-get install chromium")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(sys.argv[2]) if len(sys.argv) == 3 else recorded(sys.argv[1], Path(folder))
        made = pages(sys.argv[1], snapshot, Path(folder))
        for name, shot in SHOTS.items():
            if shot.page in made:
                picture(chromium, made[shot.page], shot, Path(folder), PICTURES / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
