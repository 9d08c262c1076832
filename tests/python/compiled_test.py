"""`spillway dryrun` of compiled code: torch.compile with its own kernels, and a program's own kernels in Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spillway._compiled import few

COMMAND = os.environ["SPILLWAY_COMMAND"]
BENCH = Path(__file__).resolve().parents[2] / "bench" / "dryrun" / "compiled.py"

KERNELS = """
import triton, triton.language as tl

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)

x, known = torch.ones(100, device="cuda"), torch.ones(3, device="cuda")
out = torch.zeros(100, device="cuda")
kernel = double[(1,)](x, out, 100, BLOCK=128)
print(65536 // (kernel.n_regs * 32 * 4) > 0)
out.sum().item()  # not real
tuned[(2,)](x, out, 100)

@torch.compile
def inside(x, out):
    double[(1,)](x, out, 100, BLOCK=128)
    return x + 1

again = torch.zeros(100, device="cuda")
inside(torch.ones(100, device="cuda"), again)
again.sum().item()  # not real either
print(known.sum().item())
"""

# What was freed was real, and compiled code gets its place without an operator.
REUSED = """
def step(x):
    return torch.relu(x) * 2 + 1

compiled = torch.compile(step)
for _ in range(3):
    there = torch.ones(1000, device="cuda")
    x = torch.ones(1000, device="cuda")
    place = there.data_ptr()
    del there
    out = compiled(x)
print(out.data_ptr() == place)
out.sum().item()  # not real
print(x.sum().item())
"""

OPTIMIZER = """
parameter = torch.nn.Parameter(torch.empty(100, 100, device="cuda"))
optimizer = torch.optim.AdamW([parameter])
step = torch.compile(optimizer.step)
for _ in range(2):
    parameter.grad = torch.empty_like(parameter)
    step()
parameter.sum().item()  # not real
print(True)
"""


def dryrun(code: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text("import os, torch\n" + code)
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | more
        words = [COMMAND, "dryrun", "--gpu-memory", "4GiB", *options, "--", sys.executable, str(script)]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


class Compiled(unittest.TestCase):
    def test_choices(self) -> None:
        """Floats stand for kernels of Triton."""
        self.assertEqual(few([1.0, 1, 2.0, 3.0], float), [1, 1.0])
        self.assertEqual(few([1.0, 2.0], float), [1.0, 2.0])
        self.assertEqual(few([1], float), [1])
        self.assertEqual(few([], float), [])

    def test_caches_are_apart(self) -> None:
        code = 'print(os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"])\n'
        code += 'print(os.path.exists(os.environ["TRITON_LIBCUDA_PATH"] + "/libcuda.so.1"))'
        done = dryrun(code, TORCHINDUCTOR_CACHE_DIR="/real", TRITON_CACHE_DIR="/real", TRITON_LIBCUDA_PATH="/real")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("/real", done.stdout)
        self.assertTrue(done.stdout.endswith("\nTrue\n"), done.stdout)


@unittest.skipUnless(find_spec("triton"), "Triton is not installed: scripts/requirements-test.txt names it")
class WithTriton(unittest.TestCase):
    def unreal(self, code: str, printed: str) -> None:
        """The looks, on the lines that say so, are at what is not real."""
        done = dryrun(code, "--json")
        self.assertEqual((done.returncode, done.stdout), (0, printed), done.stderr)
        said = "\n" + done.stderr
        report: dict[str, Any] = json.loads(said[said.rindex("\n{\n") :])
        (process,) = report["processes"]
        self.assertEqual([read["where"] for read in process["unreal_reads"] if "# not real" not in read["where"]], [])
        self.assertEqual(len(process["unreal_reads"]), code.count("# not real"))

    def test_own_kernels(self) -> None:
        self.unreal(KERNELS, "True\n3.0\n")

    def test_what_compiled_code_wrote_is_not_real(self) -> None:
        self.unreal(REUSED, "True\n1000.0\n")

    def test_compiled_optimizer(self) -> None:
        """Dynamo prints parameters while it compiles: no look of the program's."""
        self.unreal(OPTIMIZER, "True\n")

    def test_modes(self) -> None:
        sizes = ("--layers", "1", "--width", "128", "--command", COMMAND)
        done = subprocess.run([sys.executable, BENCH, *sizes], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = {row["mode"]: row for row in map(json.loads, done.stdout.splitlines())}
        eager = rows["eager"]
        self.assertLess(rows["default"]["steady_mib"], eager["steady_mib"])
        self.assertLess(rows["reduce-overhead"]["steady_mib"], eager["steady_mib"])  # the rest is in its graphs' pool
        self.assertLess(rows["max-autotune"]["steady_mib"], eager["steady_mib"])


if __name__ == "__main__":
    unittest.main()
