"""`spillway run`: an unchanged program, all its Python processes served, its exit code; and what dryrun refuses too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from command import COMMAND, spillway

BACKEND = "import torch; print(torch.cuda.get_allocator_backend())"


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return spillway("run", "--", sys.executable, "-c", code, *arguments, **environment)


class Run(unittest.TestCase):
    def test_an_unchanged_program_is_served(self) -> None:
        self.assertEqual(run_python(BACKEND).stdout.strip(), "spillway")

    def test_who_asks_where_pytorch_is_before_it_is_imported(self) -> None:
        for first in ("import importlib.util; importlib.util.find_spec('torch')", "import transformers.utils"):
            self.assertEqual(run_python(f"{first}; {BACKEND}").stdout.strip(), "spillway", first)

    def test_exit_code_and_arguments_are_the_programs(self) -> None:
        done = run_python("import sys; print(sys.argv[1:]); sys.exit(7)", "--help", "--", "x")
        self.assertEqual((done.returncode, done.stdout.strip()), (7, "['--help', '--', 'x']"))

    def test_processes_that_it_starts_are_served(self) -> None:
        code = """
import multiprocessing, torch

def backend(queue):
    queue.put(torch.cuda.get_allocator_backend())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=backend, args=(queue,))
    worker.start()
    print(queue.get(timeout=100))
    worker.join()
"""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "spawns.py"
            script.write_text(code)
            done = spillway("run", "--", sys.executable, str(script))
        self.assertEqual(done.stdout.strip(), "spillway", done.stderr)

    def test_workers_of_torchrun_and_of_its_data_loaders_are_served(self) -> None:
        code = """
import os, torch, torch.utils.data

class Backends(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.cuda.get_allocator_backend()

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Backends(), num_workers=1, multiprocessing_context="spawn")
    backends = {torch.cuda.get_allocator_backend(), *(backend for batch in loader for backend in batch)}
    torch.zeros(1, device="cuda")
    print(os.environ["RANK"], *backends, flush=True)
"""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "loads.py"
            script.write_text(code)
            # A machine need not be able to look its own name up.
            address = ("--standalone", "--local-addr", "127.0.0.1")
            launcher = ("-m", "torch.distributed.run", *address, "--nproc-per-node", "2")
            stats = {"SPILLWAY_STATS": f"{folder}/rank%r.json"}
            done = spillway("run", "--", sys.executable, *launcher, str(script), **stats)
            self.assertEqual(sorted(done.stdout.splitlines()), ["0 spillway", "1 spillway"], done.stderr)
            for rank in (0, 1):
                self.assertEqual(json.loads((Path(folder) / f"rank{rank}.json").read_text())["rank"], rank)

    def with_sitecustomize(self, text: str, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sitecustomize.py").write_text(text)
            path = os.pathsep.join([folder, os.environ["PYTHONPATH"]])
            return run_python(program, PYTHONPATH=path, **environment)

    def test_a_sitecustomize_of_the_user_runs_too(self) -> None:
        program = f"import os; print(os.environ['SEEN']); {BACKEND}"
        done = self.with_sitecustomize("import os; os.environ['SEEN'] = 'yes'\n", program)
        self.assertEqual(done.stdout.split(), ["yes", "spillway"], done.stderr)

    def test_a_sitecustomize_that_fails_is_reported_and_the_program_served(self) -> None:
        for fails, said in (
            ("import no_such_profiler\n", "No module named 'no_such_profiler'"),
            ("1 / 0\n", "by zero"),
        ):
            done = self.with_sitecustomize(fails, BACKEND)
            self.assertEqual((done.returncode, done.stdout.strip()), (0, "spillway"), done.stderr)
            self.assertIn("Error in sitecustomize", done.stderr)
            self.assertIn(said, done.stderr)

    def test_pytorch_that_is_imported_before_it(self) -> None:
        done = self.with_sitecustomize("import torch\n", BACKEND)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "spillway"), done.stderr)
        for before, said in (
            ("import os, torch; os.environ['CXX'] = 'nope'; os.environ['SPILLWAY_CACHE'] = '/proc/x'\n", "nope"),
            ("import torch; torch.zeros(1, device='cuda')\n", "call spillway.install() first"),
        ):
            done = self.with_sitecustomize(before, BACKEND)
            self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(said, done.stderr)

    def test_disabled(self) -> None:
        self.assertEqual(run_python(BACKEND, SPILLWAY_DISABLE="1").stdout.strip(), "native")

    def test_a_program_without_pytorch_is_untouched(self) -> None:
        done = spillway("run", "--", "sh", "-c", "echo here; exit 3")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (3, "here\n", ""))

    def test_what_was_served_is_one_line_at_the_end(self) -> None:
        code = "import torch; torch.zeros(1 << 20, device='cuda')"
        done = run_python(code)
        peak = r"peak 4\.000 MiB allocated in .*B reserved"
        self.assertRegex(done.stderr, rf"(?m)^spillway run: python.*: [\d,]+ allocations served, .*B in all; {peak}\n$")
        done = spillway("run", "--quiet", "--", sys.executable, "-c", code)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = spillway("run", "--", "true")
        self.assertEqual(done.stderr, "spillway run: nothing was served: no process asked for device memory\n")

    def test_without_a_gpu_it_points_at_dryrun(self) -> None:
        done = spillway("run", "--", "sh", "-c", "exit 3", SPILLWAY_LIBCUDA="/nowhere/libcuda.so.1")
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (3, 1), done.stderr)
        self.assertIn("spillway dryrun --gpu-memory", done.stderr)

    def test_signals_reach_the_program(self) -> None:
        handles = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9));"
        for own, number, code in (
            (handles, signal.SIGTERM, 9),
            ("", signal.SIGTERM, -15),
            (handles, signal.SIGKILL, -9),
        ):
            waits = "[time.sleep(0.05) for _ in range(2000)]"
            words = f"import os, signal, sys, time; {own} print(os.getpid(), flush=True); {waits}"
            with subprocess.Popen(
                [COMMAND, "run", "--", sys.executable, "-c", words], stdout=subprocess.PIPE, text=True
            ) as run:
                assert run.stdout is not None
                program = int(run.stdout.readline())
                run.send_signal(number)
                self.assertEqual(run.wait(60), code)
                # Nothing is left behind: where its pipe is closed, the program has ended.
                self.assertEqual(run.stdout.read(), "")
                self.assertNotEqual(program, run.pid)

    def test_preloaded_without_a_driver(self) -> None:
        done = spillway(
            "run", "--preload", "--", "sh", "-c", "echo here; exit 3", SPILLWAY_LIBCUDA="/nowhere/libcuda.so.1"
        )
        self.assertEqual((done.returncode, done.stdout), (3, "here\n"))
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("/nowhere/libcuda.so.1", done.stderr)
        self.assertIn("the program runs without Spillway", done.stderr)

    def test_it_never_goes_on_with_another_allocator(self) -> None:
        again = f"try:\n    import torch\nexcept:\n    {BACKEND}\n"
        with tempfile.TemporaryDirectory() as folder:
            for code in (BACKEND, again):
                done = run_python(code, CXX="no-such-compiler", SPILLWAY_CACHE=folder)
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual(done.stdout, "")
                self.assertIn("no C++ compiler", done.stderr)

    def test_what_is_wrong_is_one_line(self) -> None:
        cases = (
            ({"SPILLWAY_LIBRARY": "/nowhere/libspillway.so"}, "SPILLWAY_LIBRARY names no file"),
            ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "backend"),
        )
        for command in (["run"], ["dryrun", "--gpu-memory", "1GiB"]):
            for environment, said in cases:
                done = spillway(*command, "--", sys.executable, "-c", BACKEND, **environment)
                self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
                own = [line for line in done.stderr.splitlines() if line.startswith("spillway: ")]
                self.assertIn(said, "\n".join(own), done.stderr)
                self.assertNotIn("Traceback", done.stderr)
                if command == ["run"]:
                    self.assertEqual(own, done.stderr.splitlines())

    def test_a_python_without_pytorch_imports_next_to_nothing(self) -> None:
        heavy = "'spillway', 'torch', 'typing', 'importlib.abc', 'ctypes', 'traceback'"
        names = f"import sys; print([name for name in ({heavy}) if name in sys.modules])"
        # What an environment's own start has is not Spillway's.
        without = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True)
        done = run_python(names)
        self.assertEqual(done.stdout, without.stdout, done.stderr)

    def test_pinned_memory_for_the_asking(self) -> None:
        code = """
import torch
torch.cuda.init()
block = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)
print(torch.cuda.host_memory_stats()["allocated_bytes.current"] >> 20)
"""
        # PyTorch's own takes 4 MiB.
        for options, mebibytes in (([], "4"), (["--pinned-memory"], "3")):
            done = spillway("run", *options, "--", sys.executable, "-c", code, SPILLWAY_CONF="limit:1GiB")
            self.assertEqual(done.stdout.strip(), mebibytes, done.stderr)

    def test_dumps_are_named_by_rank(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            code = "import torch; torch.zeros(1, device='cuda')"
            done = run_python(code, RANK="3", SPILLWAY_STATS=f"{folder}/rank%r.json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads((Path(folder) / "rank3.json").read_text())["rank"], 3)

    def test_options_of_python_that_only_look_like_those_that_ignore_the_environment(self) -> None:
        for options in (["-Wignore::SyntaxWarning"], ["-W", "ignore::ImportWarning"], ["-Xfrozen_modules=on"]):
            done = spillway("run", "--", sys.executable, *options, "-c", BACKEND)
            self.assertEqual(done.stdout.strip(), "spillway", done.stderr)

    def test_bad_input(self) -> None:
        for words, said in (
            (["run"], "what is to be run"),
            (["run", "--", "/no/such/program"], "cannot be started"),
            *(
                (["run", "--", "python3", *words], "ignore its environment")
                for words in (
                    ["-I", "x.py"],
                    ["-Im", "x"],
                    ["-E", "-Bc", "x"],
                    ["-X", "dev", "-WdefaultS", "-BS", "x.py"],
                )
            ),
            (["run", "--fast", "--", "true"], "--fast"),
            (["run", "--plain", "--pinned-memory", "--", "true"], "--plain"),
            *(
                (["dryrun", "--gpu-memory", size, "--", "true"], "2MiB to 16TiB")
                for size in (
                    "much",
                    "0",
                    "2097151",
                    "-5GiB",
                    "17TiB",
                    "9" * 30 + "GiB",
                    "1e3",
                    "80XB",
                    "nan",
                )
            ),
            *((["dryrun", "--gpu-memory", size, "--", "true"], f"did you mean '{size}GiB'?") for size in ("1", "80")),
            (["dryrun", "--gpu-memory", "", "--", "true"], "--gpu-memory needs a value"),
            (["dryrun", "--", "true"], "--gpu-memory"),
        ):
            done = spillway(*words)
            self.assertEqual(done.returncode, 1, words)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
