"""Every page as a file: its links lead somewhere, its commands are the command's; and mistakes are found."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from pages.contents import ROOT, pages
from pages.reading import anchor_of, broken_links, read
from pages.written import Tables, commands_of, complaints, lines_of, split, wrong_commands

COMMAND = Path(os.environ["SPILLWAY_COMMAND"])
# A page's text, and what is to be said of it; nothing, where it is right.
COMMANDS = [
    ("    spillway report dump.json --rows 5\n", ""),
    ("    spillway reprot dump.json\n", "there is no command reprot"),
    ("    X=1 spillway report dump.json --row 5 | less\n", "spillway report has no option --row"),
    ("    spillway replay a.pickle --capacity\n", "spillway replay --capacity needs a value"),
    ("    spillway report a.json --json=1\n", "spillway report --json takes no value"),
    ("    spillway doctor here\n", "spillway doctor takes fewer files or words"),
    ("    spillway replay a.pickle \\\n        --capactiy 3GiB\n", "spillway replay has no option --capactiy"),
    ("    $ spillway replay a --capactiy 3GiB\n    spillway: no such option\n", ""),  # shown as a mistake
    ("    spillway run -- python train.py --anything\n", ""),
    ("`spillway estimate --gpus`\n", ""),
    ("`spillway estimate --gpuz`\n", "spillway estimate has no option --gpuz"),
    ("`spillway.instal()`\n", "spillway has no instal"),
    ("    source <(spillway completions bash)\n", "there is no command completions"),
    ("    scripts/tests --fast\n", "there is no scripts/tests"),
    ("    scripts/test --fats\n", "scripts/test has no option --fats"),
    (f"    SPILLWAY_{'SETTING'}=a:b ./app\n", f"nothing reads SPILLWAY_{'SETTING'}"),
    ("    SPILLWAY_CONF=limits:3GiB ./app\n", "there is no setting limits"),
    ("```python\nspillway.install(\n```\n", "is no Python: '(' was never closed"),
    ("```python\nspillway.regoin('a')\n```\n", "spillway has no regoin"),
    ("```python\nfrom spillway.compat.cuppy import x\n```\n", "there is no module spillway.compat.cuppy"),
]
LINKS = [
    ("[a](b.md)", []),
    ("[a](b.md#two-words--more)", []),
    ("[a](b.md#two-words-1)", []),
    ("[a](#here)\n\n## Here", []),
    ("[a](https://example.org/#x)", []),
    ("[a](c.md)", ["a.md:1: c.md leads nowhere"]),
    ("\ntwo lines\n[a](b.md#three)", ["a.md:3: b.md#three: b.md has no heading of that name"]),
    ("![a](b.png)", ["a.md:1: b.png leads nowhere"]),
    ("[a](../b.md)", ["a.md:1: ../b.md leads nowhere"]),
    ("    [a](c.md)", []),
]


class Pages(unittest.TestCase):
    def test_links_lead_to_files_and_headings(self) -> None:
        self.assertEqual([said for page in pages() for said in broken_links(page, ROOT)], [])

    def test_commands_are_those_of_the_command(self) -> None:
        self.assertEqual(wrong_commands(pages(), COMMAND), [])

    def test_enough_of_them_are_looked_at(self) -> None:
        found = [
            words
            for page in pages()
            for code in read(page).code
            for _, line in lines_of(code)
            for words in commands_of(split(line))
            if Path(words[0]).name == "spillway"
        ]
        self.assertGreater(len(found), 150)

    def test_variables_of_the_environment_are_in_the_table(self) -> None:
        """All that is read of it, but for what the command says to the processes that it starts."""
        folders = [str(ROOT / name) for name in ("abi", "cli", "driver", "python/spillway")]
        reads = r"(getenv\(|environ\.get\(|variable\(|named_folder\()\"SPILLWAY_[A-Z_]+"
        listed = subprocess.run(["grep", "-rhoE", reads, *folders], capture_output=True, text=True, check=True).stdout
        found = set(re.findall(r"SPILLWAY_[A-Z_]+", listed))
        table = (ROOT / "docs" / "configuration.md").read_text().split("## Environment variables")[1]
        told = set(re.findall(r"`(SPILLWAY_[A-Z_]+)`", table))
        self.assertGreaterEqual(len(told & found), 8, found)
        by_the_command = (
            "SPILLWAY_DRYRUN",
            "SPILLWAY_DRIVER",
            "SPILLWAY_LIVE_LINKS",
            "SPILLWAY_PYTEST",
            "SPILLWAY_RUN",
        )
        self.assertEqual({name for name in found - told if not name.startswith(by_the_command)}, set())

    def test_tests_that_pages_name_exist(self) -> None:
        listing = [os.environ["SPILLWAY_CTEST"], "--test-dir", os.environ["SPILLWAY_BUILD"], "-N", "-C", "long"]
        listed = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
        names = re.findall(r"Test +#\d+: (\S+)", listed)
        patterns = {
            (page, quoted or bare)
            for page in pages()
            for code in read(page).code
            for quoted, bare in re.findall(r"\bctest\b.* -R (?:'([^']+)'|(\S+))", code.text)
        }
        self.assertGreater(len(patterns), 3)
        for page, pattern in patterns - {(ROOT / "CONTRIBUTING.md", "NAME")}:
            with self.subTest(page=page.name, pattern=pattern):
                self.assertTrue([name for name in names if re.search(pattern, name)])


class Mistakes(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def test_a_wrong_command_is_named(self) -> None:
        tables = Tables(COMMAND)
        for number, (text, said) in enumerate(COMMANDS):
            with self.subTest(text=text):
                page = self.folder / f"{number}.md"
                page.write_text(text)
                found = [each for code in read(page).code for _, each in complaints(code, tables)]
                self.assertEqual(found, [said] if said else [])

    def test_a_wrong_link_is_named(self) -> None:
        for number, (text, said) in enumerate(LINKS):
            with self.subTest(text=text):
                root = self.folder / str(number)
                root.mkdir()
                (root / "b.md").write_text("# Two words\n\n## Two words\n\n## Two words: `&` more\n")
                (root / "a.md").write_text(text)
                self.assertEqual(list(broken_links(root / "a.md", root)), said)

    def test_anchors_are_those_of_github(self) -> None:
        self.assertEqual(anchor_of("Many ranks: `--json`, and *more*"), "many-ranks---json-and-more")


if __name__ == "__main__":
    unittest.main()
