"""The installed package works by itself: what the wheel holds, put together as the wheel does it, outside the checkout.

The environment names the build's folder (SPILLWAY_BUILD).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = os.environ["SPILLWAY_BUILD"]
OURS = ("SPILLWAY_", "LD_PRELOAD", "PYTHONPATH")

PROGRAM = """
import spillway, torch
assert spillway.__file__.startswith({packages!r})
print(torch.cuda.get_allocator_backend(), torch.empty(1 << 20, device="cuda").device)
"""


class Package(unittest.TestCase):
    packages: tempfile.TemporaryDirectory[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.packages = tempfile.TemporaryDirectory()
        shutil.copytree(
            SOURCE / "python" / "spillway",
            Path(cls.packages.name) / "spillway",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        words = ["cmake", "--install", BUILD, "--component", "wheel", "--prefix", cls.packages.name]
        subprocess.run(words, check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.packages.cleanup()

    def dryrun(self, **environment: str) -> str:
        """What PROGRAM prints, run by the package's command with nothing of the checkout."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        start = "import sys; from spillway._command import main; sys.argv[0] = 'spillway'; main()"
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "program.py"
            script.write_text(PROGRAM.format(packages=self.packages.name))
            words = ["-c", start, "dryrun", "--gpu-memory", "1GiB", "--", sys.executable, str(script)]
            done = subprocess.run(
                [sys.executable, *words],
                env={**clean, "PYTHONPATH": self.packages.name, "SPILLWAY_CACHE": folder, **environment},
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_command_runs_pytorch_on_the_simulated_device(self) -> None:
        given = {name: os.environ[name] for name in ("SPILLWAY_CACHE", "SPILLWAY_CUDA_INCLUDE")}
        self.assertIn("spillway cuda:0", self.dryrun(**given))

    def test_a_prebuilt_extension_needs_no_compiler(self) -> None:
        compiled = max(
            Path(os.environ["SPILLWAY_CACHE"]).glob("spillway_torch-*.so"), key=lambda path: path.stat().st_mtime
        )
        name = "-".join(compiled.name.split("-")[:-1]) + ".so"
        prebuilt = Path(self.packages.name) / "spillway" / "lib" / name
        shutil.copyfile(compiled, prebuilt)
        try:
            self.assertIn("spillway cuda:0", self.dryrun(CXX="/nowhere/c++"))
        finally:
            prebuilt.unlink()

    def test_it_is_typed_and_has_its_headers(self) -> None:
        package = Path(self.packages.name) / "spillway"
        for name in ("py.typed", "include/spillway/spillway.h", "lib/libspillway.so.0", "bin/spillway"):
            self.assertTrue((package / name).exists(), name)


if __name__ == "__main__":
    unittest.main()
