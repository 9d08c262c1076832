"""scripts/docs makes the site of the pages without a warning, and says what is wrong with one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from pages.contents import CHAPTERS, DOCS
from pages.site import broken_links

COMMAND = os.environ["SPILLWAY_COMMAND"]


class Site(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_it_is_made_without_a_warning_and_each_page_is_on_it(self) -> None:
        words = [sys.executable, "-m", "pages", "--command", COMMAND, "--out", str(self.folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        html = self.folder / "html"
        self.assertEqual(done.stdout, f"{html}/index.html\n")
        for page in DOCS.rglob("*.md"):
            self.assertTrue((html / page.relative_to(DOCS)).with_suffix(".html").is_file(), page)
        home = (html / "index.html").read_text()
        for names in CHAPTERS.values():
            for name in names:
                self.assertIn(f'href="{name}.html"', home)
        # What is made of the sources is there, under its own name.
        self.assertIn('id="bench-tiers"', (html / "commands.html").read_text())
        self.assertIn('id="offload-activations"', (html / "python.html").read_text())
        self.assertIn("spw_stream_ends_unseen", (html / "c.html").read_text())

    def test_a_command_that_is_not_there_is_one_line(self) -> None:
        words = [sys.executable, "-m", "pages", "--command", "/nowhere", "--out", str(self.folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.splitlines()[-1].split(": ")[1:3], ["error", "--command /nowhere"])

    def test_addresses_that_lead_nowhere_are_named(self) -> None:
        (self.folder / "b.html").write_text('<h1 id="here">x</h1>')
        for text, said in [
            ('<a href="b.html#here">x</a><a href="https://example.org">x</a>', []),
            ('<a href="b.html#there">x</a>', ["a.html: b.html#there names no place of that page"]),
            ('<a href="c.html">x</a>', ["a.html: c.html leads nowhere"]),
            ('<img src="c.png">', ["a.html: c.png leads nowhere"]),
            (
                '<script src="https://example.org/x.js"></script>',
                ["a.html: https://example.org/x.js is taken from a network"],
            ),
        ]:
            with self.subTest(text=text), tempfile.TemporaryDirectory() as other:
                (Path(other) / "a.html").write_text(text)
                (Path(other) / "b.html").write_text('<h1 id="here">x</h1>')
                self.assertEqual(broken_links(Path(other)), said)


if __name__ == "__main__":
    unittest.main()
