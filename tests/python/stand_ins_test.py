"""`spillway stand-ins`: libraries that stand in for NVIDIA's, made for the PyTorch that the program has."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from command import COMMAND, spillway


class StandIns(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def pytorch(self, release: str, cuda: str | None) -> str:
        """A PYTHONPATH with a package that is enough to tell what stand-ins it needs."""
        package = self.folder / "torch"
        (package / "lib").mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
        (package / "version.py").write_text(f"__version__ = {release!r}\ncuda = {cuda!r}\n")
        library = Path(torch.__path__[0]) / "lib" / "libc10_cuda.so"
        if not (package / "lib" / library.name).exists():
            (package / "lib" / library.name).symlink_to(library)
        return os.pathsep.join([str(self.folder), os.environ["PYTHONPATH"]])

    def test_those_that_were_built_serve_the_pytorch_that_they_were_built_for(self) -> None:
        done = spillway("stand-ins", sys.executable, CC="/nowhere/cc", SPILLWAY_CACHE="/proc/nowhere")
        self.assertEqual(done.stdout.strip(), str(Path(COMMAND).parents[1] / "lib" / "sim"), done.stderr)

    def test_another_pytorch_has_its_own(self) -> None:
        path = self.pytorch("2.99.0", "13.9")
        cache = str(self.folder / "cache")
        # Of a process that was killed while it made them, and of one that is at it.
        left, young = (self.folder / "cache" / name for name in ("making-left", "making-young"))
        for folder in (left, young):
            folder.mkdir(parents=True)
        os.utime(left, (0, 0))
        made = spillway("stand-ins", sys.executable, PYTHONPATH=path, SPILLWAY_CACHE=cache, CC="env LANG=C cc")
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        libraries = Path(made.stdout.strip())
        self.assertEqual(libraries.parent, self.folder / "cache")
        self.assertEqual(sorted(self.folder.glob("cache/making-*")), [young])
        self.assertEqual((libraries / "made_for").read_text(), (self.folder / "torch" / "version.py").read_text())
        self.assertTrue((libraries / "libcublas.so.13").exists())
        program = ["--", sys.executable, "-c", "import os; print(os.environ['SPILLWAY_LIBCUDA'])"]
        unmakable = {"PYTHONPATH": path, "CC": "/nowhere/cc"}
        kept = spillway("dryrun", "--gpu-memory", "1GiB", *program, **unmakable, SPILLWAY_CACHE=cache)
        self.assertEqual(kept.stdout.strip(), str(libraries / "libcuda.so.1"), kept.stderr)
        none = spillway("dryrun", "--gpu-memory", "1GiB", *program, **unmakable, SPILLWAY_CACHE=f"{cache}2")
        self.assertEqual((none.returncode, none.stdout), (1, ""))
        self.assertEqual(len(none.stderr.splitlines()), 1, none.stderr)
        self.assertIn("install gcc", none.stderr)

    def test_the_pytorch_that_counts_is_that_of_the_script(self) -> None:
        script = self.folder / "torchrun"
        for first_line in (f"#!{sys.executable}", "#!/usr/bin/env python3"):
            script.write_text(f"{first_line}\nprint('ran')\n")
            script.chmod(0o755)
            path = os.pathsep.join([str(self.folder), str(Path(sys.executable).parent), os.environ["PATH"]])
            for program in (str(script), "torchrun"):
                named = {"PATH": path, "SPILLWAY_PYTHON": "/nowhere/python"}
                done = spillway("dryrun", "--gpu-memory", "1GiB", "--", program, **named)
                self.assertEqual(done.stdout.strip(), "ran", done.stderr)

    def test_a_program_that_is_only_called_like_a_python_is_run_once(self) -> None:
        script = self.folder / "python_job"
        script.write_text("#!/bin/sh\necho ran\n")
        script.chmod(0o755)
        named = {"SPILLWAY_PYTHON": sys.executable}
        done = spillway("dryrun", "--gpu-memory", "1GiB", "--", str(script), "-c", "x", **named)
        self.assertEqual(done.stdout, "ran\n", done.stderr)

    def test_a_pytorch_for_another_cuda_is_refused_and_one_that_is_too_old(self) -> None:
        other = "install a PyTorch for one of them"
        for release, cuda, said, advice in (
            ("2.11.0", "11.8", "for CUDA 11.8, and the simulated device has CUDA 12 and 13", other),
            ("2.11.0", None, "without CUDA", other),
            ("2.8.0+cu129", "12.9", "PyTorch 2.8.0+cu129 is too old", "upgrade to 2.9 or later"),
        ):
            path = self.pytorch(release, cuda)
            done = spillway("dryrun", "--gpu-memory", "1GiB", "--", sys.executable, "-c", "", PYTHONPATH=path)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn(said, done.stderr)
            self.assertIn(advice, done.stderr)

    def test_a_pytorch_for_cuda_12_has_the_libraries_of_that(self) -> None:
        path = self.pytorch("2.10.0", "12.8")
        made = spillway("stand-ins", sys.executable, PYTHONPATH=path, SPILLWAY_CACHE=str(self.folder / "cache"))
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        names = {file.name for file in Path(made.stdout.strip()).iterdir()}
        self.assertGreater(
            names, {"libcuda.so.1", "libcudart.so.12", "libcublas.so.12", "libcufft.so.11", "libnccl.so.2"}
        )
        self.assertEqual([name for name in names if name.endswith(".so.13")], [])


if __name__ == "__main__":
    unittest.main()
