"""The command of scripts/docs: stages the pages, has Sphinx make the site, and looks where every link of it leads."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from . import site, staging
from .contents import ROOT, pages
from .reading import broken_links
from .written import wrong_commands

BUILT = ROOT / "build" / "release" / "bin" / "spillway"
SPHINX = f"{sys.executable} -m sphinx -b html -W --keep-going -q -E -c {Path(__file__).parent} -d".split()


def main() -> int:
    parser = argparse.ArgumentParser("docs", description="Makes the site of docs/.")
    parser.add_argument("--command", type=Path, default=BUILT, help="the command spillway")
    parser.add_argument("--out", type=Path, default=ROOT / "build/docs", help="the folder; the site is its html/")
    asked = parser.parse_args()
    if not asked.command.is_file():
        parser.error(f"--command {asked.command}: no such file; scripts/docs without it builds one")
    wrong = [each for page in pages() for each in broken_links(page, ROOT)]
    wrong += wrong_commands(pages(), asked.command.resolve())
    wrong += staging.stage(asked.out / "pages", asked.command.resolve())
    if not wrong:
        folders = [str(asked.out / name) for name in ("doctrees", "pages", "html")]
        done = subprocess.run([*SPHINX, *folders])
        wrong += ["Sphinx warned"] if done.returncode else site.broken_links(asked.out / "html")
    for each in wrong:
        print(each, file=sys.stderr)
    if not wrong:
        print(asked.out / "html" / "index.html")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
