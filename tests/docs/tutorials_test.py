"""The tutorials, as they stand: each command after a prompt is run, and prints the lines that the page shows."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import warm
from pages.contents import DOCS, ROOT
from pages.reading import read

COMMAND = os.environ["SPILLWAY_COMMAND"]
TUTORIALS = {"out-of-memory.md": 2, "growing-memory.md": 3, "numbers.md": 2}  # and how many commands each shows


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """Each command with the lines that are shown below it, those of later blocks without a command too."""
    found: list[tuple[str, list[str]]] = []
    for code in read(page).code:
        if not code.is_block or code.language:
            continue
        first, *others = code.text.rstrip("\n").split("\n")
        if first.startswith("$ "):
            found.append((first[2:], others))
        elif code.text.lstrip()[:1].isdigit():
            found[-1][1].extend([first, *others])
    return found


class Tutorials(unittest.TestCase):
    def run_as_shown(self, folder: str, command: str) -> str:
        """In a folder of its own, where files are written, beside the project's examples; paths are named from it."""
        programs = {"spillway": COMMAND, "python": warm.python("torch")}
        words = [programs.get(word, word) for word in shlex.split(command)]
        given = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        done = subprocess.run(words, cwd=folder, env=given, capture_output=True, text=True, check=False)
        self.assertIn(done.returncode, (0, 2), done.stderr)
        return (done.stdout + done.stderr).replace(f"{folder}/", "")

    def test_commands_print_what_is_shown(self) -> None:
        for name, count in TUTORIALS.items():
            shown = commands(DOCS / name)
            self.assertEqual(len(shown), count, name)
            # A long path would be cut in what is printed.
            with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
                shutil.copytree(ROOT / "examples" / "tutorials", Path(folder) / "examples" / "tutorials")
                for command, lines in shown:
                    printed = [line.strip() for line in self.run_as_shown(folder, command).split("\n")]
                    for line in lines:
                        with self.subTest(command=command):
                            self.assertIn(line.strip(), printed)


if __name__ == "__main__":
    unittest.main()
