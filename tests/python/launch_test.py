"""`spillway run` and `spillway dryrun`: an unchanged program, all its Python processes served, its own exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch

COMMAND = os.environ["SPILLWAY_COMMAND"]
BACKEND = "import torch; print(torch.cuda.get_allocator_backend())"


def spillway(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # dryrun brings the simulated device itself; what simulates the device for these tests stays out of its way.
    given = {**os.environ, **environment}
    if words[0] == "dryrun":
        given.pop("LD_PRELOAD", None)
    return subprocess.run([COMMAND, *words], env=given, capture_output=True, text=True, check=False)


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
            words = f"import os, signal, sys, time; {own} print(os.getpid(), flush=True); time.sleep(100)"
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
                    "",
                    "0",
                    "1",
                    "80",
                    "2097151",
                    "-5GiB",
                    "17TiB",
                    "9" * 30 + "GiB",
                    "1e3",
                    "80XB",
                    "nan",
                )
            ),
            (["dryrun", "--", "true"], "--gpu-memory"),
        ):
            done = spillway(*words)
            self.assertEqual(done.returncode, 1, words)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            self.assertIn(said, done.stderr)


TRAINING = """
import sys, torch
width = int(sys.argv[1])
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(64, width, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(torch.cuda.get_allocator_backend(), loss.item())
"""


@unittest.skipIf("SPILLWAY_TEST_GPU" in os.environ, "dryrun is for machines without a GPU")
class DryRun(unittest.TestCase):
    def dryrun(self, width: int, *options: str) -> subprocess.CompletedProcess[str]:
        return spillway("dryrun", "--gpu-memory", "2GiB", *options, "--", sys.executable, "-c", TRAINING, str(width))

    def test_one_that_is_told_to_end_is_reported(self) -> None:
        code = "import time, torch; torch.zeros(1 << 20, device='cuda'); print('ready', flush=True); time.sleep(100)"
        words = [COMMAND, "dryrun", "--gpu-memory", "h100-80", "--", sys.executable, "-c", code]
        given = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        with subprocess.Popen(words, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None and run.stderr is not None
            self.assertEqual(run.stdout.readline(), "ready\n")
            run.terminate()
            self.assertIn("simulated device of 79.179 GiB", run.stderr.read())
            self.assertEqual(run.wait(60), 128 + signal.SIGTERM)

    def test_what_fits(self) -> None:
        done = self.dryrun(4000)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("spillway", done.stdout)
        self.assertIn("it fits", done.stderr)
        self.assertIn("meaningless", done.stderr)

    def test_what_does_not_fit(self) -> None:
        done = self.dryrun(12000)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("does NOT fit", done.stderr)

    def test_the_native_allocator_for_comparison(self) -> None:
        done = self.dryrun(4000, "--allocator", "native", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("native", done.stdout)
        report = json.loads(done.stderr)
        weights = 4 * 4000 * 4001 * 4
        self.assertGreater(report["processes"][0]["devices"][0]["peak_allocated_bytes"], 4 * weights)
        self.assertFalse(report["out_of_memory"])

    def test_the_peak_of_a_program_that_begins_its_peaks_anew(self) -> None:
        code = (
            "import torch; torch.cuda.reset_peak_memory_stats();"
            "torch.zeros(9 << 20, dtype=torch.uint8, device='cuda');"
            "torch.cuda.reset_peak_memory_stats(); torch.zeros(100, device='cuda')"
        )
        for allocator in ("spillway", "native"):
            options = ("--gpu-memory", "1GiB", "--json", "--allocator", allocator)
            done = spillway("dryrun", *options, "--", sys.executable, "-c", code)
            (device,) = json.loads(done.stderr)["processes"][0]["devices"]
            self.assertEqual(device["peak_requested_bytes"], 9 << 20)

    def test_copies_move_bytes_unless_they_are_not_wanted(self) -> None:
        code = "import torch; x = torch.arange(7); print(torch.equal(x.cuda().cpu(), x))"
        for options, equal in (([], "True"), (["--no-bytes"], "False")):
            done = spillway("dryrun", "--gpu-memory", "80GiB", *options, "--", sys.executable, "-c", code)
            self.assertEqual((done.returncode, done.stdout.strip()), (0, equal), done.stderr)

    def test_the_smallest_and_the_largest_device(self) -> None:
        code = "import torch; torch.zeros(1, device='cuda')"
        for size in ("2MiB", "16TiB"):
            done = spillway("dryrun", "--gpu-memory", size, "--", sys.executable, "-c", code)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_python_whose_path_has_a_quote(self) -> None:
        libraries = Path(COMMAND).parents[1] / "lib" / "sim"
        with tempfile.TemporaryDirectory() as folder:
            # As in a wheel, where the libraries that PyTorch is linked with are made by the Python that is named.
            (Path(folder) / "libcudart.so.13").touch()
            python = Path(folder) / "it's python"
            python.write_text(f"#!/bin/sh\necho {libraries}\n")
            python.chmod(0o755)
            given = {"SPILLWAY_SIM_LIBRARIES": folder, "SPILLWAY_PYTHON": str(python)}
            done = spillway("dryrun", "--gpu-memory", "1GiB", "--", "sh", "-c", "echo $SPILLWAY_LIBCUDA", **given)
        self.assertEqual(done.stdout.strip(), str(libraries / "libcuda.so.1"), done.stderr)

    def test_another_error_is_not_out_of_memory(self) -> None:
        code = "import torch; torch.zeros(1, device='cuda'); raise SystemExit(5)"
        done = spillway("dryrun", "--gpu-memory", "1GiB", "--", sys.executable, "-c", code)
        self.assertEqual(done.returncode, 5)
        self.assertIn("another reason", done.stderr)

    def of_1gib(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "program.py"
            script.write_text(code)
            return spillway("dryrun", "--gpu-memory", "1GiB", "--", sys.executable, str(script), **environment)

    def test_out_of_memory_that_no_handler_of_exceptions_sees(self) -> None:
        too_much = "torch.empty(4 << 30, dtype=torch.uint8, device='cuda')"
        worker = f"""
import torch, torch.multiprocessing

def work(rank):
    {too_much}

if __name__ == "__main__":
    torch.multiprocessing.spawn(work)
"""
        caught = f"import sys, torch\ntry:\n    {too_much}\nexcept torch.OutOfMemoryError:\n    sys.exit(3)\n"
        replaced = f"import sys, torch\nsys.excepthook = lambda *_: None\n{too_much}\n"
        for allocator in ({}, {"SPILLWAY_DISABLE": "1"}):
            for code, line in ((worker, 5), (caught, 3), (replaced, 3)):
                done = self.of_1gib(code, **allocator)
                self.assertEqual(done.returncode, 2, code + done.stderr)
                self.assertRegex(done.stderr, rf"died of device memory at \S+program.py:{line}: torch.empty")

    def test_three_allocators_in_one_table(self) -> None:
        code = "import torch\nfor n in (70, 90, 300):\n    x = torch.empty(n << 20, dtype=torch.uint8, device='cuda')\n"
        command = ["--gpu-memory", "420MiB", "--compare"]
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "program.py"
            script.write_text(code)
            done = spillway("dryrun", *command, "--", sys.executable, str(script))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"spillway +390.000 MiB +390.000 MiB  it ran to its end")
            self.assertRegex(done.stderr, r"native +390.000 MiB")
            self.assertRegex(done.stderr, r"expandable +390.000 MiB")
            done = spillway("dryrun", *command, "--json", "--", sys.executable, str(script))
            runs = json.loads(done.stderr[done.stderr.index("{") :])["runs"]
            self.assertEqual([run["allocator"] for run in runs], ["spillway", "native", "expandable"])
            self.assertEqual({run["processes"][0]["devices"][0]["num_ooms"] for run in runs}, {0})

    def test_a_refusal_that_the_program_survived_is_no_death(self) -> None:
        code = """import torch
for size in (3, 20, 3):
    try:
        torch.empty(size << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
"""
        goes_on = "torch.zeros(1 << 20, device='cuda')\n"
        said = r"rank 0 was refused 20.000 GiB at \S+program.py:4: torch.empty.*, and went on \(3 times\)"
        for allocator in ({}, {"SPILLWAY_DISABLE": "1"}):
            for program in (code, code + goes_on):
                done = self.of_1gib(program, **allocator)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stderr, said)
                self.assertNotIn("died", done.stderr)
                self.assertIn("it fits", done.stderr)
            dies = "torch.empty(2 << 40, dtype=torch.uint8, device='cuda')\n"
            done = self.of_1gib(code + goes_on + dies, **allocator)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, said)
            self.assertRegex(done.stderr, r"died of device memory at \S+program.py:8: torch.empty")

    def test_out_of_memory_inside_another_exception(self) -> None:
        too_much = "torch.empty(4 << 30, dtype=torch.uint8, device='cuda')"
        wrapped = "import torch\ntry:\n    {0}\nexcept torch.OutOfMemoryError as error:\n    raise {1}\n"
        compiled = f"""
import torch
def backend(module, inputs):
    {too_much}
torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
"""
        group = wrapped.format(too_much, "ExceptionGroup('steps', [ValueError('x'), error])")
        for code, line in (
            (wrapped.format(too_much, "RuntimeError('step failed') from error"), 3),
            (wrapped.format(too_much, "RuntimeError('step failed')"), 3),
            (wrapped.format(too_much, "RuntimeError('step failed') from None"), 3),
            *([(group, 3)] if sys.version_info >= (3, 11) else []),
            (compiled, 4),
        ):
            done = self.of_1gib("import torch; torch.zeros(1, device='cuda')\n" + code)
            self.assertEqual(done.returncode, 2, code + done.stderr)
            self.assertRegex(done.stderr, rf"died of device memory at \S+program.py:{line + 1}: torch.empty")

    def test_children_of_fork_that_are_the_first_to_use_cuda(self) -> None:
        by_multiprocessing = """
import multiprocessing, sys, torch

def work(count):
    torch.empty(count << 20, dtype=torch.uint8, device="cuda")

worker = multiprocessing.get_context("fork").Process(target=work, args=({count},))
worker.start()
worker.join()
sys.exit(worker.exitcode)
"""
        by_os = """
import os, sys, torch
child = os.fork()
if child == 0:
    try:
        torch.empty({count} << 20, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        os._exit(3)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
        for program in (by_multiprocessing, by_os):
            done = self.of_1gib(program.format(count=100))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("rank 0 device 0: peak allocated 100", done.stderr)
            done = self.of_1gib(program.format(count=4096))
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("died of device memory", done.stderr)

    def test_what_nobody_watched_is_not_known(self) -> None:
        uses = "import torch; torch.zeros(1, device='cuda')"
        killed = f"{uses}; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        unseen = ["env", "PYTHONPATH=/tmp", sys.executable, "-c"]
        for words, said, code in (
            ([*unseen, uses], "PYTHONPATH is replaced", 1),
            ([*unseen, f"{uses}; raise SystemExit(7)"], "why it ended with code 7", 7),
            (["true"], "no process imported PyTorch", 1),
            (["sh", "-c", f'{sys.executable} -c "{killed}"; true'], "was killed", 1),
        ):
            done = spillway("dryrun", "--gpu-memory", "1GiB", "--", *words)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn("not known", done.stderr)
            self.assertIn(said, done.stderr)
            self.assertNotIn("fits", done.stderr)

    def test_a_program_that_uses_no_device(self) -> None:
        done = self.of_1gib("import torch; torch.zeros(1)")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("used nothing", done.stderr)
        self.assertNotIn("fits", done.stderr)

    def test_devices_that_a_rank_left_alone_are_left_out(self) -> None:
        code = "import torch; torch.zeros(1, device='cuda:1')"
        done = spillway("dryrun", "--gpu-memory", "1GiB", "--devices", "3", "--", sys.executable, "-c", code)
        self.assertEqual(
            [line.split(":")[0].strip() for line in done.stderr.splitlines() if ": peak" in line],
            ["rank 0 device 1"],
            done.stderr,
        )

    def test_out_of_memory_that_the_program_coped_with(self) -> None:
        code = """
import sys, torch
try:
    torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
"""
        for end, said in (("sys.exit(3)", 3), ("raise ValueError", 1)):
            done = self.of_1gib(code + end)
            self.assertEqual(done.returncode, said, done.stderr)
            self.assertIn("1 out of memory", done.stderr)
            self.assertIn("another reason", done.stderr)

    def test_ranks_are_those_that_workers_take(self) -> None:
        code = """
import os, torch, torch.multiprocessing

def work(rank):
    os.environ["RANK"] = str(rank)
    torch.zeros(1, device="cuda")

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=2)
"""
        self.assertIn("ranks 0-1, 2 devices", self.of_1gib(code).stderr)

    def test_the_report_names_the_allocator_that_served(self) -> None:
        code = "import torch; torch.zeros(1, device='cuda')"
        for environment, name in (({}, "spillway"), ({"SPILLWAY_DISABLE": "1"}, "native")):
            self.assertIn(f"allocator {name}\n", self.of_1gib(code, **environment).stderr)

    def test_no_thread_of_a_backward_pass_asks_for_an_interpreter_that_ends(self) -> None:
        # A pass is found whose context PyTorch's thread still holds, and which it cannot drop while this one runs.
        code = """
import contextvars, sys, weakref, torch
from spillway._pytorch.releases import release_of
from spillway._run import finish_backward_passes

class Mark:
    pass

def backward(mark):
    held.set(mark)
    torch.ones((), device="cuda", requires_grad=True).backward()

def is_held():
    mark = Mark()
    reference = weakref.ref(mark)
    contextvars.copy_context().run(backward, mark)
    del mark
    return reference if reference() is not None else None

held = contextvars.ContextVar("held")
reference = None
sys.setswitchinterval(1000)
while release_of(torch) >= (2, 15) and reference is None:
    reference = is_held()
finish_backward_passes(torch, [0])
print(reference is None or reference() is None)
"""
        done = self.of_1gib(code)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "True"), done.stderr)

    def test_an_environment_that_hides_the_devices(self) -> None:
        code = "import torch; torch.zeros(1, device='cuda'); print(torch.cuda.device_count())"
        for hidden in ("", "-1"):
            done = self.of_1gib(code, CUDA_VISIBLE_DEVICES=hidden)
            self.assertEqual(done.stdout.strip(), "1", done.stderr)
            self.assertIn("rank 0 device 0", done.stderr)


@unittest.skipIf("SPILLWAY_TEST_GPU" in os.environ, "they are for machines without a GPU")
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
        made = spillway("stand-ins", sys.executable, PYTHONPATH=path, SPILLWAY_CACHE=cache, CC="env LANG=C cc")
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        libraries = Path(made.stdout.strip())
        self.assertEqual(libraries.parent, self.folder / "cache")
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
        other = "install a PyTorch for CUDA 13"
        for release, cuda, said, advice in (
            ("2.11.0", "12.8", "for CUDA 12.8", other),
            ("2.11.0", None, "without CUDA", other),
            ("2.8.0+cu129", "12.9", "PyTorch 2.8.0+cu129 is too old", "upgrade to 2.9 or later"),
        ):
            path = self.pytorch(release, cuda)
            done = spillway("dryrun", "--gpu-memory", "1GiB", "--", sys.executable, "-c", "", PYTHONPATH=path)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn(said, done.stderr)
            self.assertIn(advice, done.stderr)


if __name__ == "__main__":
    unittest.main()
