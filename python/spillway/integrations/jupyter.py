"""The magic `%%spillway` of Jupyter and IPython: a cell's peak of device memory, what it left behind, and which lines
held most.

    %load_ext spillway.integrations.jupyter

    %%spillway
    loss = model(batch).sum()
"""

from __future__ import annotations

import ast
import html
import itertools
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from .._command import command_path
from .._errors import SpillwayError
from .._pytorch.install import import_torch
from ._recording import Peak, Recording, lines_text
from ._sizes import size_text

HERE = str(Path(__file__).parent)
PAGE_PIXELS = 720


class CellReport:
    """What a cell showed: text in a terminal; with --page the interactive page of `spillway report` in a notebook."""

    def __init__(self, peaks: list[Peak], most_lines: int, page: str = "") -> None:
        self.peaks = peaks
        self.most_lines = most_lines
        self.page = page

    def __repr__(self) -> str:
        texts = [self._text(peak) for peak in self.peaks]
        return "\n".join(texts) or "the cell allocated no device memory"

    def _repr_html_(self) -> str:
        text = f"<pre>{html.escape(repr(self))}</pre>"
        if not self.page:
            return text
        source = html.escape(self.page)
        return f'{text}<iframe srcdoc="{source}" width="100%" height="{PAGE_PIXELS}" frameborder="0"></iframe>'

    def _text(self, peak: Peak) -> str:
        left = (
            f"{size_text(peak.left_bytes)} left behind"
            if peak.left_bytes >= 0
            else f"{size_text(-peak.left_bytes)} freed"
        )
        head = f"cuda:{peak.device}: peak {size_text(peak.peak_bytes)} above {size_text(peak.before_bytes)}, {left}"
        return "\n".join([head, *lines_text(peak.lines, self.most_lines)])


@magics_class
class SpillwayMagics(Magics):
    shell: InteractiveShell

    @magic_arguments()
    @argument("--lines", type=int, default=8, help="how many lines of the peak are shown (8)")
    @argument("--page", action="store_true", help="the page of `spillway report` too: the timeline, and every block")
    @argument("--save", metavar="FILE", default="", help="keeps the memory snapshot, for `spillway report` and others")
    @cell_magic
    def spillway(self, line: str, cell: str) -> object:
        """Runs the cell, and shows what device memory it took."""
        options = parse_argstring(self.spillway, line)
        if options.lines < 0:
            raise UsageError(f"--lines {options.lines}: allowed are numbers from 0")
        run = self._compiled(cell)
        recording = Recording(import_torch(), self._show)
        try:
            with recording:
                return run()
        finally:
            display(self._report(recording, options))

    def _compiled(self, cell: str) -> Callable[[], object]:
        """As %%time does: an error is the cell's own, and the last line's value its value."""
        shell = self.shell
        source = shell.transform_cell(cell)
        number = len(shell.history_manager.input_hist_parsed) - 1
        name = shell.compile.cache(source, number, raw_code=cell)
        tree = shell.transform_ast(shell.compile.ast_parse(source, name))
        last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else ast.Constant(None)
        statements = shell.compile(tree, name, "exec")
        expression = shell.compile(ast.fix_missing_locations(ast.Expression(last)), name, "eval")

        def run() -> object:
            exec(statements, shell.user_ns)
            return eval(expression, shell.user_ns)

        return run

    def _report(self, recording: Recording, options: Any) -> CellReport:
        page = ""
        try:
            if recording.snapshot is not None and (options.save or options.page):
                snapshot = pickle.dumps(self._named(recording.snapshot))
                if options.save:
                    Path(options.save).write_bytes(snapshot)
                if options.page:
                    page = page_of(snapshot)
        except (SpillwayError, OSError) as problem:
            print(f"spillway: {problem}", file=sys.stderr)
        return CellReport(recording.peaks, options.lines, page)

    def _named(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """With cells by their numbers, which alone say something later, and without what runs them."""
        for trace in snapshot["device_traces"]:
            for event in trace:
                own = itertools.takewhile(lambda frame: not frame["filename"].startswith(HERE), event.get("frames", ()))
                event["frames"] = [{**frame, "filename": self._file(frame["filename"])} for frame in own]
        return snapshot

    def _file(self, name: str) -> str:
        cell = self.shell.compile.format_code_name(name)
        return name if cell is None else f"{cell[1]}.py"

    def _show(self, frame: Mapping[str, Any]) -> str:
        """Cells by their numbers."""
        name = self.shell.compile.format_code_name(frame["filename"])
        if name is None:
            return f"{frame['filename']}:{frame['line']} in {frame['name']}"
        place = f"{' '.join(name)}, line {frame['line']}"
        return place if frame["name"] == "<module>" else f"{place} in {frame['name']}"


def page_of(snapshot: bytes) -> str:
    """HTML. Errors: SpillwayError, OSError."""
    command = str(command_path())
    with tempfile.TemporaryDirectory() as folder:
        file, page = Path(folder) / "cell.pickle", Path(folder) / "cell.html"
        file.write_bytes(snapshot)
        words = [command, "report", str(file), "--html", str(page)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SpillwayError((done.stderr.strip().splitlines() or [f"spillway report: code {done.returncode}"])[-1])
        return page.read_text()


def load_ipython_extension(shell: InteractiveShell) -> None:
    shell.register_magics(SpillwayMagics)
