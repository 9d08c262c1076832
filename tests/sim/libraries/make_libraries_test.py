"""The generator of stand-ins for NVIDIA's libraries, on a package that imports what it knows, and what it does not.

usage: make_libraries_test.py GENERATOR BUILT CC
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

GENERATOR, BUILT, CC = sys.argv[1:4]
# The simulated runtime is of the version that the installed PyTorch was built for.
CUDA = "13" if (Path(BUILT) / "libcudart.so.13").exists() else "12"


class MakeLibraries(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "torch" / "lib").mkdir(parents=True)
        (self.folder / "torch" / "version.py").write_text("__version__ = 'of the test'\n")

    def imports(self, *names: str) -> None:
        """A library of the package that takes these functions from elsewhere."""
        source = self.folder / "importer.c"
        calls = " + ".join(f"{name}()" for name in names) or "0"
        source.write_text(
            "".join(f"long {name}(void);\n" for name in names) + f"long use(void) {{ return {calls}; }}\n"
        )
        library = self.folder / "torch" / "lib" / "libimporter.so"
        subprocess.run([CC, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)

    def make(self, *options: str) -> subprocess.CompletedProcess[str]:
        places = ["--output", str(self.folder / "made"), "--work", str(self.folder / "work")]
        words = [
            sys.executable,
            GENERATOR,
            "--torch",
            str(self.folder / "torch"),
            "--built",
            BUILT,
            "--cc",
            CC,
            "--cuda",
            CUDA,
            *places,
            *options,
        ]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    def refuses(self, reason: str) -> None:
        done = self.make()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr, f"make_libraries: {reason}\n")
        self.assertFalse((self.folder / "made").exists())

    def test_what_is_imported_is_there(self) -> None:
        self.imports("cudaMalloc", "cublasOfTomorrow", "cudnnOfTomorrow")
        done = self.make()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        made = self.folder / "made"
        self.assertEqual(ctypes.CDLL(str(made / f"libcublas.so.{CUDA}")).cublasOfTomorrow(), 0)
        # What it would compute is read by the caller, so it is not said to have worked.
        self.assertEqual(ctypes.CDLL(str(made / "libcudnn.so.9")).cudnnOfTomorrow(), 3000)
        self.assertEqual((made / "made_for").read_text(), "__version__ = 'of the test'\n")

    def test_an_import_that_nobody_has_is_named(self) -> None:
        self.imports("cudaOfTomorrow", "cuOfTomorrow", "cublasCreate_v2")
        self.refuses("PyTorch imports what no stand-in has: cuOfTomorrow, cudaOfTomorrow")

    def test_what_the_runtime_lacks_answers_that_it_is_not_supported_where_that_is_wanted(self) -> None:
        self.imports("cudaOfTomorrow", "cudaMalloc")
        done = self.make("--refuse-unknown")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        unknown = ctypes.CDLL(str(self.folder / "made" / "libspillway_unknown.so.0"))
        self.assertEqual(unknown.cudaOfTomorrow(), 801)
        self.assertFalse(hasattr(unknown, "cudaMalloc"))
        self.imports("cuOfTomorrow")
        self.assertIn("cuOfTomorrow", self.make("--refuse-unknown").stderr)

    def test_what_is_no_pytorch_for_cuda(self) -> None:
        folder = self.folder / "torch" / "lib"
        self.refuses(f"no libraries of PyTorch in {folder}")
        self.imports()
        self.refuses(f"the libraries in {folder} import nothing of CUDA: not a CUDA build")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
