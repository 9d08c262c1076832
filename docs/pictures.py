"""Makes the pictures of docs/pictures/ by headless Chromium (Debian: chromium).

usage: docs/pictures.py SPILLWAY [SNAPSHOT]

SNAPSHOT is a memory snapshot of PyTorch; without one, the example trace of the repository is shown.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
EXAMPLE = ROOT / "examples" / "traces" / "small_transformer.pickle.gz"
# Width and height, and whether the screen is a dark one.
REPORTS = {
    "report.png": ("1180,1500", False),
    "report-dark.png": ("1180,1100", True),
    "report-phone.png": ("500,1500", False),
}


def picture_of_page(chromium: str, spillway: str, snapshot: Path, output: Path, size: str, is_dark: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        command = [spillway, "report", str(snapshot), "--html", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(
            [
                chromium,
                *(["--blink-settings=preferredColorScheme=0"] if is_dark else []),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                f"--user-data-dir={folder}/profile",
                f"--window-size={size}",
                "--virtual-time-budget=20000",
                f"--screenshot={output}",
                page.as_uri(),
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
    snapshot = Path(sys.argv[2]) if len(sys.argv) == 3 else EXAMPLE
    for name, (size, is_dark) in REPORTS.items():
        picture_of_page(chromium, sys.argv[1], snapshot, PICTURES / name, size, is_dark)
    return 0


if __name__ == "__main__":
    sys.exit(main())
