"""Makes the pictures of pages in docs/pictures/ by headless Chromium (Debian: chromium): on a screen of 1400 pixels and
on a phone of 400, light and dark.

usage: docs/pictures.py SPILLWAY [SNAPSHOT]

Dry runs of the tutorial's training are on the pages, for which python has to import PyTorch and Spillway; SNAPSHOT, a
memory snapshot of PyTorch, is on that of the report instead. Pictures of the site are made where scripts/docs has made
it.
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
TRAINING = (sys.executable, ROOT / "examples" / "tutorials" / "out_of_memory.py")
RUN = ROOT / "examples" / "estimate" / "run.toml"
SITE = ROOT / "build" / "docs" / "html" / "index.html"
SCREEN, PHONE = 1400, 400


class Shot(NamedTuple):
    page: str
    width: int
    height: int
    is_dark: bool


HEIGHTS = {"report": 1500, "diff": 1100, "dryrun": 1300, "estimate": 1300, "site": 1000}
FORMS = {"": (SCREEN, False), "-dark": (SCREEN, True), "-phone": (PHONE, False), "-phone-dark": (PHONE, True)}
SHOTS = {
    f"{page}{form}.png": Shot(page, width, height, is_dark)
    for page, height in HEIGHTS.items()
    for form, (width, is_dark) in FORMS.items()
}


def call(*words: str | Path) -> None:
    """An answer of no (2) is one too: its page is made."""
    command = [str(word) for word in words]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if done.returncode not in (0, 2):
        sys.exit(f"pictures.py: failed: {' '.join(command)}")


def pages(spillway: str, given: Path | None, folder: Path) -> dict[str, Path]:
    made = {name: folder / f"{name}.html" for name in HEIGHTS if name != "site"}
    recomputed, kept = folder / "recomputed.pickle", folder / "kept.pickle"
    dryrun = (spillway, "dryrun", "--gpu-memory", "24GiB")
    call(*dryrun, "--out", recomputed, "--html", made["dryrun"], "--", *TRAINING, "--recompute")
    call(*dryrun, "--out", kept, "--", *TRAINING)
    call(spillway, "report", given or recomputed, "--html", made["report"])
    call(spillway, "diff", recomputed, kept, "--html", made["diff"])
    call(spillway, "estimate", RUN, "--gpu", "h100-80,a100-40", "--html", made["estimate"])
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
        made = pages(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) == 3 else None, Path(folder))
        for name, shot in SHOTS.items():
            if shot.page in made:
                picture(chromium, made[shot.page], shot, Path(folder), PICTURES / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
