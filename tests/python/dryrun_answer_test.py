"""What `spillway dryrun` answers: ranks by class, who holds what at the peak, GPUs, files, JSON by its schema."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import warm
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

COMMAND = os.environ["SPILLWAY_COMMAND"]
ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Draft202012Validator(json.loads((ROOT / "docs" / "schema" / "dryrun.schema.json").read_text()))
MIB = 1 << 20

TRAINING = """import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024, bias=False) for _ in range(4))
        self.register_buffer("scale", torch.ones(1 << 18))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(8192, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class Answer(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def dryrun(self, code: str, *options: str) -> subprocess.CompletedProcess[str]:
        script = self.folder / "program.py"
        script.write_text(code)
        words = [COMMAND, "dryrun", *options, "--", warm.python("torch"), str(script)]
        given = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        return subprocess.run(words, env=given, capture_output=True, text=True, check=False)

    def json_of(self, code: str, *options: str) -> dict[str, Any]:
        done = self.dryrun(code, *options, "--json")
        answer: dict[str, Any] = json.loads(done.stderr[done.stderr.index("{\n") :])
        self.assertEqual([error.message for error in SCHEMA.iter_errors(answer)], [])
        return answer

    def peak_of(self, code: str, *options: str) -> dict[str, Any]:
        (device,) = self.json_of(code, "--gpu-memory", "2GiB", *options)["processes"][0]["devices"]
        peak: dict[str, Any] = device["peak"]
        self.assertEqual(sum(peak["kinds"].values()), peak["requested_bytes"])
        self.assertEqual(sum(line["bytes"] for line in peak["lines"]) + peak["left_out_bytes"], peak["requested_bytes"])
        self.assertEqual(device["peak_requested_bytes"], peak["requested_bytes"])
        return peak

    def test_who_holds_what_at_the_peak_of_a_training(self) -> None:
        peak = self.peak_of(TRAINING)
        self.assertEqual((peak["phase"], peak["step"]), ("backward", 2), peak)
        kinds = peak["kinds"]
        self.assertEqual((kinds["parameters"], kinds["buffers"]), (16 * MIB, MIB))
        self.assertEqual(kinds["optimizer_states"], 32 * MIB)
        where = {line["where"].split("program.py:")[-1]: line for line in peak["lines"]}
        activations = where["11: x = layer(x).relu()"]
        self.assertEqual((activations["kind"], activations["phase"]), ("others", "forward"))
        self.assertEqual(where["14: model = Model().cuda()"]["phase"], "load")
        self.assertEqual(where["19: optimizer.step()"]["kind"], "optimizer_states")

    def test_what_is_said_of_it_and_files(self) -> None:
        out, page = self.folder / "snapshot.pickle", self.folder / "page.html"
        files = ("--out", str(out), "--html", str(page), "--allocator", "native")
        done = self.dryrun(TRAINING, "--gpu-memory", "2GiB", *files)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, "the peak is in backward of step 2, at backward")
        self.assertRegex(done.stderr, "parameters 16.000 MiB .*optimizer states 32.000 MiB .*activations and others")
        self.assertRegex(done.stderr, r"MiB  forward +\S+program.py:11: x = layer")
        self.assertRegex(done.stderr, r"of a GPU: reserved \S+ MiB \+ context and libraries 400.000 MiB =")
        snapshot = pickle.loads(out.read_bytes())
        frames = {frame["line"] for entry in snapshot["device_traces"][0] for frame in entry.get("frames", [])}
        self.assertIn(11, frames)
        self.assertIn("the peak is in backward of step 2", page.read_text())
        for command in ("replay", "report"):
            read = subprocess.run([COMMAND, command, str(out)], capture_output=True, text=True, check=False)
            self.assertEqual(read.returncode, 0, read.stderr)
        self.assertIn("program.py:11", read.stdout)

    def test_the_report_goes_where_it_is_asked_to(self) -> None:
        report = self.folder / "report.json"
        options = ("--gpu-memory", "1GiB", "--json", "--output", str(report))
        done = self.dryrun("import torch; print(torch.zeros(1).cuda().is_cuda)", *options)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "True\n", ""))
        self.assertEqual(json.loads(report.read_text())["verdict"], "fits")
        too_much = "import torch; torch.empty(2 << 30, dtype=torch.uint8, device='cuda')"
        done = self.dryrun(too_much, *options, "--compare")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertNotIn("schema_version", done.stderr)
        answer = json.loads(report.read_text())
        self.assertEqual([error.message for error in SCHEMA.iter_errors(answer)], [])
        self.assertEqual([run["verdict"] for run in answer["runs"]], ["out of memory"] * 3)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"program.py", "report.json"})

    def test_a_report_that_cannot_be_written_any_more(self) -> None:
        folder = self.folder / "reports"
        folder.mkdir()
        report = folder / "report.json"
        code = f"import os, torch; torch.zeros(1).cuda(); os.rmdir({str(folder)!r})"
        done = self.dryrun(code, "--gpu-memory", "1GiB", "--json", "--output", str(report))
        said = f"spillway: {report}: No such file or directory\n"
        self.assertEqual((done.returncode, done.stderr), (1, said))

    def test_a_model_that_is_not_trained(self) -> None:
        code = """import torch
def main():
    model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
    with torch.no_grad():
        x = model(torch.randn(64 << 10, 1024, device="cuda"))
        x = torch.cat([x, x])
    del model
main()
"""
        peak = self.peak_of(code)
        self.assertEqual((peak["phase"], peak["kinds"]["parameters"]), ("forward", 4 * MIB))
        self.assertIn("program.py:6: x = torch.cat", peak["where"])

    def test_a_program_that_records_memory_itself(self) -> None:
        code = """import torch
for argument in ({"enabled": "all"}, {"enabled": "state", "context": None}):
    torch.cuda.memory._record_memory_history(**argument)
    x = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")
    assert len(torch.cuda.memory._snapshot()["device_traces"][0]) > (argument["enabled"] == "all")
    torch.cuda.memory._record_memory_history(None)
    y = torch.zeros(5 << 20, dtype=torch.uint8, device="cuda")
    del x
x = torch.zeros(6 << 20, dtype=torch.uint8, device="cuda")
"""
        peak = self.peak_of(code)
        lines = {line["where"].split("program.py:")[-1][0]: line["bytes"] for line in peak["lines"]}
        self.assertEqual(lines, {"4": 3 * MIB, "7": 10 * MIB}, peak)

    def test_a_program_that_dies_of_memory(self) -> None:
        code = "import torch\nx = torch.zeros(1 << 20, device='cuda')\ny = torch.zeros(1 << 40, device='cuda')\n"
        answer = self.json_of(code, "--gpu", "NVIDIA A100-SXM4-40GB")
        self.assertEqual(answer["verdict"], "out of memory")
        self.assertEqual([(gpu["name"], gpu["verdict"]) for gpu in answer["gpus"]], [("a100-40", "NO")])
        (line,) = answer["processes"][0]["devices"][0]["peak"]["lines"]
        self.assertIn("program.py:2", line["where"])

    def test_gpus_by_name(self) -> None:
        # PyTorch's own allocator keeps the first block beside the second one where there is room.
        code = """import torch
for size in (300, 301):
    x = None
    x = torch.empty(size << 20, dtype=torch.uint8, device="cuda")
"""
        gpus = "600MiB,h100-80,900MiB"
        with tempfile.TemporaryDirectory() as folder:
            # What could be written when the program began cannot be any more at its end.
            gone = os.path.join(folder, "gone")
            os.mkdir(gone)
            code += f"import shutil\nshutil.rmtree({gone!r}, ignore_errors=True)\n"
            done = self.dryrun(code, "--gpu", gpus, "--allocator", "native", "--out", f"{gone}/out.pickle")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, "h100-80 +79.179 GiB: FITS +needs 1002.000 MiB, 78.200 GiB left")
        self.assertRegex(done.stderr, "900MiB +900.000 MiB: FITS +needs 702.000 MiB, 198.000 MiB left")
        self.assertRegex(done.stderr, "600MiB +600.000 MiB: NO +needs 702.000 MiB\n")
        self.assertIn(gone, done.stderr.splitlines()[-1])

    def test_ranks_whose_peaks_agree_are_one_line(self) -> None:
        code = """import os, torch
size = 64 if os.environ["RANK"] == "1" else 10
torch.empty(size << 20, dtype=torch.uint8, device=f"cuda:{os.environ['LOCAL_RANK']}")
"""
        ranks = ("--gpu-memory", "1GiB", "--devices", "3", "--world-size", "3")
        done = self.dryrun(code, *ranks, "--out", str(self.folder / "rank%r.pickle"))
        self.assertRegex(done.stderr, "ranks 0, 2, 2 devices: peak allocated 10.000 MiB")
        self.assertRegex(done.stderr, "rank 1 device 1: peak allocated 64.000 MiB")
        self.assertRegex(done.stderr, r"context and libraries 400.000 MiB \+ NCCL 600.000 MiB = 1.039 GiB")
        names = [f"rank{rank}.pickle" for rank in (0, 1, 2)]
        self.assertEqual(sorted(file.name for file in self.folder.glob("*.pickle")), names)

    def test_uses_of_memory_that_is_not_there(self) -> None:
        host = """import ctypes, torch
x = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")
pointer = x.data_ptr()
{0}
ctypes.string_at(pointer, 1)
"""
        away = """import torch, spillway
with spillway.region("weights"):
    x = torch.ones(8 << 20, dtype=torch.uint8, device="cuda")
spillway.evict("weights")
x.cpu()
"""
        done = self.dryrun(host.format(""), "--gpu-memory", "1GiB")
        self.assertRegex(done.stderr, "rank 0 died of a signal: Segmentation fault: the host used device memory, 0x")
        self.assertRegex(done.stderr, r"at \S+program.py:5: ctypes.string_at\(pointer, 1\)")
        gone = "del x; torch.cuda.empty_cache()"
        done = self.dryrun(host.format(gone), "--gpu-memory", "1GiB", "--allocator", "native")
        self.assertIn("device memory that is already freed", done.stderr)
        done = self.dryrun(away, "--gpu-memory", "1GiB")
        self.assertEqual(done.returncode, 1, done.stderr)
        said = r"rank 0 died at \S+program.py:5: x.cpu\(\): cuMemcpy\w+ of memory that is not there"
        self.assertRegex(done.stderr, said)

    def test_bad_input(self) -> None:
        for options, said in (
            (["--gpu", "h100x"], "--gpu 'h100x' is not known"),
            (["--gpu", "100MiB"], "too small"),
            (["--gpu", ""], "--gpu needs a value"),
            (["--gpu", "h100-80", "--gpu-memory", "80GiB"], "--gpu"),
            (["--gpu", "h100-80", "--compare"], "--gpu"),
            (["--gpu-memory", "1GiB", "--compare", "--out", "x"], "--out"),
            ([], "how much memory has a device"),
        ):
            done = self.dryrun("", *options)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
