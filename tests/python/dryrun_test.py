"""`spillway dryrun`: whether a program fits, where it died if it does not, and what is said of each rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import warm
from command import COMMAND, spillway

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

THOROUGH = "SPILLWAY_TEST_THOROUGH" in os.environ  # as scripts/test --long sets it


class Ended(unittest.TestCase):
    """Programs that have no handler for the signal by which somebody ends them."""

    SLEEPS = "import time, torch; x = torch.zeros(1 << 20, device='cuda'); print('ready', flush=True); time.sleep(100)"

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # A shell starts what it leaves in the background with it ignored, and so would these programs be started.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def told(self, number: int, *words: str, whole_group: bool = False) -> tuple[int, str]:
        """The exit code and what is said on stderr, where the signal comes once the program has said "ready"."""
        given = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = [COMMAND, "dryrun", *words]
        with subprocess.Popen(
            command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as run:
            assert run.stdout is not None
            self.assertEqual(run.stdout.readline(), "ready\n")
            if whole_group:
                os.killpg(run.pid, number)
            else:
                run.send_signal(number)
            said = run.communicate(timeout=120)[1]
            return run.returncode, said

    def test_what_was_seen_until_then_is_reported(self) -> None:
        script = self.folder / "program.py"
        script.write_text(self.SLEEPS)
        program = ["--", sys.executable, str(script)]
        signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        cases = [(number, whole_group) for number in signals for whole_group in (False, True)]
        for number, whole_group in cases if THOROUGH else [cases[0], cases[3], cases[5]]:
            code, said = self.told(number, "--gpu-memory", "h100-80", *program, whole_group=whole_group)
            self.assertEqual(code, 128 + number, said)
            self.assertIn("simulated device of 79.179 GiB", said)
            self.assertIn("rank 0 device 0: peak allocated 4.000 MiB", said)
            self.assertIn(f"it was ended by {number.name}: this is what was seen until then", said)

    def test_its_files_are_written(self) -> None:
        names = {"--out": "x.pickle", "--html": "x.html", "--output": "x.json"}
        files = [word for option, name in names.items() for word in (option, str(self.folder / name))]
        program = ["--json", "--", sys.executable, "-c", self.SLEEPS]
        code, said = self.told(signal.SIGTERM, "--gpu-memory", "1GiB", *files, *program)
        self.assertEqual(code, 128 + signal.SIGTERM, said)
        for name in ("x.pickle", "x.html"):
            self.assertRegex(said, rf"wrote {self.folder / name} \(\d+\.\d+ [KM]iB\)")
        report = json.loads((self.folder / "x.json").read_text())
        self.assertEqual((report["verdict"], report["signal"], report["exit_code"]), ("ended", "SIGTERM", code))
        self.assertEqual(report["processes"][0]["devices"][0]["peak_requested_bytes"], 4 << 20)
        shown = spillway("report", str(self.folder / "x.pickle"))
        self.assertIn("4.000 MiB", shown.stdout, shown.stderr)
        self.assertIn("ended by SIGTERM", (self.folder / "x.html").read_text())

    def test_what_a_shell_started_ends_too_and_a_comparison_has_its_table(self) -> None:
        script = self.folder / "script.sh"
        script.write_text(f'echo $$ > {self.folder}/shell\n{sys.executable} -c "{self.SLEEPS}"\necho went on\n')
        code, said = self.told(signal.SIGTERM, "--gpu-memory", "1GiB", "--compare", "--", "sh", str(script))
        self.assertEqual(code, 128 + signal.SIGTERM, said)
        self.assertRegex(said, r"\n  spillway +4.000 MiB +4.000 MiB  it was ended by SIGTERM")
        self.assertIn("not run, as SIGTERM came: native, expandable", said)

    def test_before_pytorch_is_there_nobody_is_blamed(self) -> None:
        code, said = self.told(
            signal.SIGTERM, "--gpu-memory", "1GiB", "--", "sh", "-c", "echo ready; while :; do sleep 0.1; done"
        )
        self.assertEqual(code, 128 + signal.SIGTERM, said)
        self.assertIn("ended by SIGTERM, and no process had imported PyTorch by then", said)
        self.assertNotIn("PYTHONPATH", said)

    def test_a_program_that_handles_it_ends_as_it_likes(self) -> None:
        handles = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n" + self.SLEEPS
        code, said = self.told(signal.SIGTERM, "--gpu-memory", "1GiB", "--", sys.executable, "-c", handles)
        self.assertEqual(code, 5, said)
        self.assertIn("rank 0 device 0: peak allocated 4.000 MiB", said)
        self.assertIn("it was ended by SIGTERM", said)

    def test_a_child_of_fork_ends_at_once(self) -> None:
        code = (
            "import os, signal, time, torch; x = torch.zeros(1 << 20, device='cuda'); child = os.fork()\n"
            "if child == 0: time.sleep(100)\n"
            "time.sleep(0.5); os.kill(child, signal.SIGTERM); print(os.waitpid(child, 0)[1])"
        )
        done = spillway("dryrun", "--gpu-memory", "1GiB", "--", sys.executable, "-c", code)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, str(int(signal.SIGTERM))), done.stderr)


class DryRun(unittest.TestCase):
    def dryrun(self, width: int, *options: str) -> subprocess.CompletedProcess[str]:
        return spillway(
            "dryrun", "--gpu-memory", "2GiB", *options, "--", warm.python("torch"), "-c", TRAINING, str(width)
        )

    def test_what_fits(self) -> None:
        done = self.dryrun(4000)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("spillway", done.stdout)
        self.assertIn("it fits", done.stderr)
        self.assertIn("meaningless", done.stderr)

    def test_what_does_not_fit(self) -> None:
        done = self.dryrun(12000, "--no-bytes")
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

    def test_a_convolution_of_many_patches_makes_its_result_alone(self) -> None:
        code = (
            "import torch; patches = torch.empty(4096, 3, 2, 16, 16, device='cuda');"
            "convolution = torch.nn.Conv3d(3, 1024, (2, 16, 16), stride=(2, 16, 16), device='cuda');"
            "print(*convolution(patches).shape)"
        )
        done = spillway("dryrun", "--gpu-memory", "1GiB", "--json", "--", warm.python("torch"), "-c", code)
        self.assertEqual((done.returncode, done.stdout.split()), (0, ["4096", "1024", "1", "1", "1"]), done.stderr)
        (device,) = json.loads(done.stderr)["processes"][0]["devices"]
        patch, channels = 3 * 2 * 16 * 16, 1024
        made = 4 * (4096 * patch + channels * patch + channels + 4096 * channels)
        self.assertEqual(device["peak_requested_bytes"], made)

    def test_convolutions_make_results_and_gradients_alone(self) -> None:
        code = """
import torch
from torch import nn

def peak(layer, shape, backward):
    x = torch.empty(*shape, device="cuda", requires_grad=backward)
    gradient = torch.empty_like(layer(x))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = layer(x)
    if backward:
        out.backward(gradient)
    return torch.cuda.max_memory_allocated() - before, out

for kind, sizes in ((nn.Conv1d, (4096,)), (nn.Conv2d, (64, 64)), (nn.Conv3d, (16, 16, 16))):
    layer = kind(32, 64, 3, padding=1, device="cuda", bias=False)
    made, out = peak(layer, (4, 32, *sizes), False)
    assert made == 4 * out.numel(), (kind, made)
    made, _ = peak(layer, (4, 32, *sizes), True)
    assert made == 4 * (out.numel() + 4 * 32 * 4096 + layer.weight.numel()), (kind, made)
grouped = nn.Conv2d(32, 64, 3, groups=32, stride=2, dilation=2, device="cuda")
transposed = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1, output_padding=1, device="cuda")
x = torch.empty(2, 32, 65, 65, device="cuda")
print(*grouped(x).shape, *transposed(x).shape, grouped(x[0]).dim())
last = grouped.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
assert last.is_contiguous(memory_format=torch.channels_last)
for wrong in (x[:, :5], x.half()):
    try:
        grouped(wrong)
    except RuntimeError as error:
        print(str(error).split(",")[0])
small = torch.ones(1, 1, 4, 4, device="cuda", requires_grad=True)
weight = torch.full((1, 1, 3, 3), 2.0, device="cuda", requires_grad=True)
nn.functional.conv2d(small, weight).sum().backward()
print(nn.functional.conv2d(small, weight).sum().item(), small.grad[0, 0, 1, 1].item(), weight.grad.sum().item())
"""
        done = spillway("dryrun", "--gpu-memory", "1GiB", "--", warm.python("torch"), "-c", code)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0], "2 64 31 31 2 16 131 131 3")
        self.assertIn("channel", lines[1])
        self.assertIn("should be the same", lines[2])
        self.assertEqual(lines[3], "72.0 8.0 36.0")

    def test_attention_that_is_asked_of_cudnn(self) -> None:
        code = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

cuda = torch.backends.cuda
x = torch.rand(1, 2, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
mask = torch.ones(256, 256, device="cuda", dtype=torch.bool)
switches = lambda: (cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled())
before = switches()
for given in (None, mask):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        inside = switches()
        out = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=given)
    out.sum().backward()
    print(type(out.grad_fn).__name__, inside, switches() == before)
order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]
with sdpa_kernel(order, set_priority=True):
    print(type(torch.nn.functional.scaled_dot_product_attention(x, x, x).grad_fn).__name__)
with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
    print(type(torch.nn.functional.scaled_dot_product_attention(x, x, x).grad_fn).__name__)
"""
        done = self.of_1gib(code)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            done.stdout.splitlines(),
            [
                "ScaledDotProductFlashAttentionBackward0 (True, False, False) True",
                "ScaledDotProductEfficientAttentionBackward0 (True, False, False) True",
                "ScaledDotProductFlashAttentionBackward0",
                "ScaledDotProductEfficientAttentionBackward0",
            ],
        )

    def test_the_peak_of_a_program_that_begins_its_peaks_anew(self) -> None:
        code = (
            "import torch; torch.cuda.reset_peak_memory_stats();"
            "torch.zeros(9 << 20, dtype=torch.uint8, device='cuda');"
            "torch.cuda.reset_peak_memory_stats(); torch.zeros(100, device='cuda')"
        )
        for allocator in ("spillway", "native"):
            options = ("--gpu-memory", "1GiB", "--json", "--allocator", allocator)
            done = spillway("dryrun", *options, "--", warm.python("torch"), "-c", code)
            (device,) = json.loads(done.stderr)["processes"][0]["devices"]
            self.assertEqual(device["peak_requested_bytes"], 9 << 20)

    def test_copies_move_bytes_unless_they_are_not_wanted(self) -> None:
        code = "import torch; x = torch.arange(7); print(torch.equal(x.cuda().cpu(), x))"
        for options, equal in (([], "True"), (["--no-bytes"], "False")):
            done = spillway("dryrun", "--gpu-memory", "80GiB", *options, "--", warm.python("torch"), "-c", code)
            self.assertEqual((done.returncode, done.stdout.strip()), (0, equal), done.stderr)

    def test_the_smallest_and_the_largest_device(self) -> None:
        code = "import torch; torch.zeros(1, device='cuda')"
        for size in ("2MiB", "16TiB"):
            done = spillway("dryrun", "--gpu-memory", size, "--", warm.python("torch"), "-c", code)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_python_whose_path_has_a_quote(self) -> None:
        libraries = Path(COMMAND).parents[1] / "lib" / "sim"
        with tempfile.TemporaryDirectory() as folder:
            # As in a wheel, where the libraries that PyTorch is linked with are made by the Python that is named.
            (Path(folder) / "libcuda.so.1").touch()
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
            return spillway("dryrun", "--gpu-memory", "1GiB", "--", warm.python("torch"), str(script), **environment)

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
        ways = ((worker, 5), (caught, 3), (replaced, 3))
        native = {"SPILLWAY_DISABLE": "1"}
        for allocator, some in (({}, ways), (native, ways if THOROUGH else ways[1:2])):
            for code, line in some:
                done = self.of_1gib(code, **allocator)
                self.assertEqual(done.returncode, 2, code + done.stderr)
                self.assertRegex(done.stderr, rf"died of device memory at \S+program.py:{line}: torch.empty")

    def test_three_allocators_in_one_table(self) -> None:
        code = "import torch\nfor n in (70, 90, 300):\n    x = torch.empty(n << 20, dtype=torch.uint8, device='cuda')\n"
        command = ["--gpu-memory", "420MiB", "--compare"]
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "program.py"
            script.write_text(code)
            done = spillway("dryrun", *command, "--", warm.python("torch"), str(script))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"spillway +390.000 MiB +390.000 MiB  it ran to its end")
            self.assertRegex(done.stderr, r"native +390.000 MiB")
            self.assertRegex(done.stderr, r"expandable +390.000 MiB")
            done = spillway("dryrun", *command, "--json", "--", warm.python("torch"), str(script))
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
        done = spillway("dryrun", "--gpu-memory", "1GiB", "--devices", "3", "--", warm.python("torch"), "-c", code)
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


if __name__ == "__main__":
    unittest.main()
