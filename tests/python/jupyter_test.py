"""The magic %%spillway, in the shell of IPython itself."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest

import warm

# Each cell's display is a line of JSON.
SHELL = """
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()
shell.run_line_magic("colors", "NoColor")
for cell in json.loads(sys.argv[1]):
    with capture_output() as shown:
        result = shell.run_cell(cell, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    print(json.dumps({
        "value": repr(result.result), "error": repr(error) if error else "",
        "printed": shown.stdout + shown.stderr, "texts": [repr(each) for each in shown.outputs],
        "text": [each.data.get("text/plain", "") for each in shown.outputs],
        "html": [each.data.get("text/html", "") for each in shown.outputs]}))
"""
LOAD = "%load_ext spillway.integrations.jupyter\nimport torch"
DEFINE = "def hold(size):\n    return torch.zeros(size, dtype=torch.uint8, device='cuda')"


def cells(*texts: str) -> list[dict[str, object]]:
    command = [warm.python("torch", "IPython"), "-c", SHELL, json.dumps([LOAD, DEFINE, *texts])]
    with tempfile.TemporaryDirectory() as folder:  # not the profile of whoever runs this
        environment = {**os.environ, "IPYTHONDIR": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")][2:]


class Magic(unittest.TestCase):
    def test_the_peak_its_lines_and_what_is_left(self) -> None:
        (shown,) = cells(
            "%%spillway\nkept = hold(1 << 20)\nmore = [hold(1 << 20) for _ in range(2)]\ndel more\nkept.shape"
        )
        self.assertEqual(shown["value"], "torch.Size([1048576])")
        self.assertEqual(
            shown["text"],
            [
                "cuda:0: peak 3.000 MiB above 0 B, 1.000 MiB left behind\n"
                "   3.000 MiB  Cell In[2], line 2 in hold (3 blocks)"
            ],
        )

    def test_a_later_cell_counts_from_what_is_there(self) -> None:
        _, second, third, fourth = cells(
            "kept = hold(1 << 20)",
            "%%spillway\nmore = hold(1 << 20)\ndel kept",
            "%%spillway\n1",
            "%%spillway --lines 0\nmore = [torch.zeros(10, device='cuda') for _ in range(3)]",
        )
        self.assertIn("peak 1.000 MiB above 1.000 MiB, 0 B left behind", str(second["text"]))
        self.assertEqual((third["value"], third["text"]), ("1", ["the cell allocated no device memory"]))
        self.assertIn("1 more lines", str(fourth["text"]))

    def test_an_error_is_the_cells_own(self) -> None:
        first, second, third, after = cells(
            "%%spillway\nkept = hold(100)\n1 / 0", "%%spillway\n(", "%%spillway --lines x\n1", "kept.numel()"
        )
        self.assertEqual(first["error"], "ZeroDivisionError('division by zero')")
        self.assertIn("peak 100 B", str(first["text"]))
        self.assertIn("SyntaxError", str(second["error"]))
        self.assertEqual((second["text"], third["text"]), ([], []))
        self.assertIn("invalid int value", str(third["printed"]) + str(third["error"]))
        self.assertEqual(after["value"], "100")

    def test_the_page_and_the_snapshot(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (shown,) = cells(f"%%spillway --page --save {folder}/cell.pickle\nkept = hold(1 << 20)")
            command = [os.environ["SPILLWAY_COMMAND"], "report", f"{folder}/cell.pickle"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertIn("<iframe srcdoc=", str(shown["html"]))
        self.assertIn("&lt;title&gt;Spillway: ", str(shown["html"]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("hold In[2].py:2", done.stdout)

    def test_a_page_that_cannot_be_made_costs_one_line(self) -> None:
        (shown,) = cells("%%spillway --save /no_such_folder/x\nkept = hold(1)")
        self.assertIn("No such file", str(shown["printed"]))
        self.assertEqual(shown["error"], "")


if __name__ == "__main__":
    unittest.main()
