"""install(): what it does, when it is too late, and what is wrong in the environment. A process for each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


INSTALL = "import spillway; print(spillway.install().mode)"


class Install(unittest.TestCase):
    def refuses(self, code: str, *words: str, **environment: str) -> None:
        done = run(code, **environment)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        line = last_line(done.stderr)
        self.assertTrue(line.startswith("spillway._errors.SpillwayError: "), done.stderr)
        for word in words:
            self.assertIn(word, line)

    def test_serves_tensors(self) -> None:
        code = """
import torch, spillway
spillway.install()
tensor = torch.zeros(1000, device="cuda")
print(spillway.installed().mode, torch.cuda.memory_allocated(), torch.cuda.get_allocator_backend())
"""
        done = run(code)
        self.assertEqual(done.stdout.strip(), "full 4096 spillway", done.stderr)

    def test_pools_and_limits_before_the_first_block(self) -> None:
        code = """
import torch, spillway
spillway.install()
torch.cuda.set_per_process_memory_fraction(0.5)
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    tensor = torch.zeros(1000, device="cuda")
print(pool.use_count(), torch.cuda.get_per_process_memory_fraction())
"""
        done = run(code)
        self.assertEqual(done.stdout.split(), ["1", "0.5"], done.stderr)

    def test_again_is_ok(self) -> None:
        self.assertEqual(run(f"{INSTALL}; spillway.install()").stdout.strip(), "full")

    def test_disabled(self) -> None:
        done = run(f"{INSTALL}; import torch; print(torch.cuda.get_allocator_backend())", SPILLWAY_DISABLE="1")
        self.assertEqual(done.stdout.split(), ["none", "native"])

    def test_too_late_names_what_came_first(self) -> None:
        code = "import spillway, torch\nx = torch.zeros(1, device='cuda')\nspillway.install()"
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "late.py"
            script.write_text(code)
            done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
        self.assertIn("late.py:2", last_line(done.stderr))
        self.assertIn("spillway.install() first", last_line(done.stderr))

    def test_too_late_before_the_import(self) -> None:
        self.refuses("import torch; torch.zeros(1, device='cuda'); import spillway; spillway.install()", "not known")

    def test_fallback_warns_and_goes_on(self) -> None:
        code = """
import torch
torch.zeros(1, device="cuda")
import spillway
print(spillway.install(fallback=True))
torch.zeros(1, device="cuda")
"""
        done = run(code)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("mode='none'", done.stdout)
        self.assertIn("PyTorch's own allocator serves", done.stderr)

    def test_unknown_mode(self) -> None:
        self.refuses("import spillway; spillway.install('best')", "'best'", "full")

    def test_no_compiler(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.refuses(INSTALL, "no C++ compiler", "plain", CXX="no-such-compiler", SPILLWAY_CACHE=folder)

    def test_a_compiler_that_fails(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.refuses(INSTALL, "does not compile", "plain", CXX="false", SPILLWAY_CACHE=folder)

    def test_a_cache_that_cannot_be_written(self) -> None:
        self.refuses(INSTALL, "SPILLWAY_CACHE", SPILLWAY_CACHE="/proc/nowhere")

    def test_a_broken_cached_extension(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run(INSTALL, SPILLWAY_CACHE=folder).stdout.strip(), "full")
            for made in Path(folder).iterdir():
                made.write_bytes(b"not a library")
            self.refuses(INSTALL, "delete it", SPILLWAY_CACHE=folder)

    def test_no_library(self) -> None:
        self.refuses(INSTALL, "SPILLWAY_LIBRARY", SPILLWAY_LIBRARY="/nowhere/libspillway.so.0")

    def test_another_backend_is_a_contradiction(self) -> None:
        self.refuses(INSTALL, "cudaMallocAsync", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")


class Settings(unittest.TestCase):
    def test_known_keys_are_answered(self) -> None:
        done = run(INSTALL, PYTORCH_ALLOC_CONF="expandable_segments:True,max_split_size_mb:128")
        self.assertEqual(done.stdout.strip(), "full", done.stderr)
        self.assertIn("expandable_segments changes nothing under Spillway", done.stderr)
        self.assertIn("max_split_size_mb changes nothing under Spillway", done.stderr)

    def test_fraction_is_honoured(self) -> None:
        code = f"""
{INSTALL}
import torch
try:
    torch.empty(torch.cuda.get_device_properties(0).total_memory // 2, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("limited")
"""
        done = run(code, PYTORCH_ALLOC_CONF="per_process_memory_fraction:0.25")
        self.assertEqual(done.stdout.split(), ["full", "limited"], done.stderr)


if __name__ == "__main__":
    unittest.main()
