"""The callbacks of trainers, and what they are made of; with the real trainers on the simulated device."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import warm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "integrations"
MODULES = (
    "torch",
    "tensorboardX",
    "transformers.trainer",
    "transformers.models.llama.modeling_llama",
    "lightning.pytorch",
)
MIB = 1 << 20

HUGGING_FACE = """
import os, sys, tempfile, warnings
import torch, spillway, transformers
if sys.argv[1] == "spillway":
    spillway.install()
newest = os.environ.get("SPILLWAY_TEST_NEWEST", "")
assert transformers.__file__.startswith(newest), f"scripts/test installs the newest release into {newest}"
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from hugging_face_memory import RandomText, VOCABULARY
from spillway.integrations.transformers import SpillwayCallback

class Truth(TrainerCallback):
    peaks, begun = {}, 0
    def on_train_begin(self, *_, **__):
        self.begun += 1
    def on_step_end(self, args, state, control, **_):
        self.peaks[state.global_step] = torch.cuda.max_memory_allocated()
        assert ours.last.number == state.global_step
        assert ours.last.peak_bytes == self.peaks[state.global_step]
        assert ours.last.end_bytes == torch.cuda.memory_allocated()

class After(Truth):
    pass

model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128,
                                     num_hidden_layers=1, num_attention_heads=2))
weights = sum(parameter.nbytes for parameter in model.parameters())
ours, truth, after = SpillwayCallback(), Truth(), After()
with tempfile.TemporaryDirectory() as folder:
    os.environ["TENSORBOARD_LOGGING_DIR"] = folder
    trainer = Trainer(
        model, TrainingArguments(output_dir=folder, max_steps=5, per_device_train_batch_size=2, logging_steps=2,
                                 save_strategy="no", report_to="tensorboard", disable_tqdm=True, eval_strategy="steps",
                                 eval_steps=4, logging_nan_inf_filter=False),
        train_dataset=RandomText(20), eval_dataset=RandomText(4), callbacks=[truth, ours, after])
    trainer.train()
    events = b"".join(path.read_bytes() for path in Path(folder).rglob("events.*"))
    for name in ("step_peak", "parameter", "optimizer"):
        assert f"train/memory/{name}_gib".encode() in events, name
assert truth.begun == after.begun == 1, "a callback was left out, or called twice"

logged = {logs["step"]: logs for logs in trainer.state.log_history if "memory/step_peak_gib" in logs}
assert sorted(logged) == [2, 4], trainer.state.log_history
for step, logs in logged.items():
    assert "loss" in logs
    assert logs["memory/step_peak_gib"] == round(max(truth.peaks[step], truth.peaks[step - 1]) / (1 << 30), 6)
    so_far = max(peak for at, peak in truth.peaks.items() if at <= step)
    assert logs["memory/run_peak_gib"] == round(so_far / (1 << 30), 6)
    assert logs["memory/parameter_gib"] == round(weights / (1 << 30), 6)
    assert ("memory/host_gib" in logs) == (sys.argv[1] == "spillway")
assert ours.meter.model_bytes[0]["optimizer_bytes"] >= 2 * weights
"""

LIGHTNING = """
import sys
import torch, spillway
if sys.argv[1] == "spillway":
    spillway.install()
sys.path.insert(0, sys.argv[2])
import csv, tempfile, warnings
from pathlib import Path
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning_memory import Classifier, WIDTH
from spillway.integrations.lightning import SpillwayCallback

class Truth(Callback):
    peaks = []
    def on_train_batch_end(self, *_):
        self.peaks.append(torch.cuda.max_memory_allocated())
        assert ours.last.peak_bytes == self.peaks[-1]

data = torch.utils.data.DataLoader([(torch.randn(WIDTH), torch.tensor(1)) for _ in range(12)], batch_size=2)
ours, truth, model = SpillwayCallback(), Truth(), Classifier()
weights = sum(parameter.nbytes for parameter in model.parameters())
with tempfile.TemporaryDirectory() as folder:
    loggers = [CSVLogger(folder), TensorBoardLogger(folder)]
    trainer = Trainer(accelerator="cuda", devices=1, max_epochs=1, log_every_n_steps=3, logger=loggers,
                      callbacks=[ours, truth], enable_checkpointing=False, enable_model_summary=False,
                      enable_progress_bar=False)
    trainer.fit(model, data)
    rows = list(csv.DictReader((Path(loggers[0].log_dir) / "metrics.csv").open()))
    assert b"memory/step_peak_gib" in b"".join(path.read_bytes() for path in Path(folder).rglob("events.*"))
assert [int(row["step"]) for row in rows] == [2, 5], rows
for row, peaks in zip(rows, (truth.peaks[:3], truth.peaks[3:])):
    assert float(row["memory/step_peak_gib"]) == round(max(peaks) / (1 << 30), 6)
    assert float(row["memory/gradient_gib"]) == round(weights / (1 << 30), 6)
assert abs(float(trainer.callback_metrics["memory/step_peak_gib"]) * (1 << 30) - max(truth.peaks[3:])) < 4096
trainer = Trainer(accelerator="cuda", devices=1, max_steps=1, logger=False, callbacks=[SpillwayCallback()],
                  enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False)
trainer.fit(Classifier(), data)  # without a logger nothing is logged, and nothing is wrong
trainer = Trainer(accelerator="cpu", devices=1, max_steps=1, logger=False, callbacks=[SpillwayCallback()],
                  enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False)
trainer.fit(Classifier(), data)
"""

LIGHTNING_TO_WANDB = """
import sys
import torch, spillway
spillway.install()
sys.path.insert(0, sys.argv[1])
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning_memory import Classifier, WIDTH
from spillway.integrations.lightning import SpillwayCallback

data = torch.utils.data.DataLoader([(torch.randn(WIDTH), torch.tensor(1)) for _ in range(12)], batch_size=2)
trainer = Trainer(accelerator="cuda", devices=1, max_epochs=1, log_every_n_steps=3, callbacks=[SpillwayCallback()],
                  logger=WandbLogger(save_dir=sys.argv[2], offline=True), enable_checkpointing=False,
                  enable_model_summary=False, enable_progress_bar=False)
trainer.fit(Classifier(), data)
"""

METER = """
import torch, warnings
from spillway import SpillwayWarning
from spillway.integrations._steps import StepMeter

meter = StepMeter()
meter.begin(1)
meter.end(1)
assert meter.last is None and meter.metrics() == {}, "no device is in use"
assert not torch.cuda.is_initialized()

def step(meter, number, size):
    meter.begin(number)
    torch.zeros(size, dtype=torch.uint8, device="cuda")
    meter.end(number)

kept = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
for number, size in ((1, 3 << 20), (2, 2 << 20)):
    step(meter, number, size)
assert (meter.last.number, meter.last.peak_bytes, meter.last.end_bytes) == (2, 3 << 20, 1 << 20), meter.last
assert meter.run_peak_bytes == 4 << 20
shown = meter.metrics()
assert shown["memory/step_peak_gib"] == round(4 / 1024, 6), shown
assert meter.metrics() == {}
step(meter, 3, 1 << 20)
assert meter.metrics()["memory/step_peak_gib"] == round(2 / 1024, 6)

step(meter, 4, 8 << 20)
keeping = StepMeter(keeps_peaks=True)
step(keeping, 5, 1 << 20)
assert keeping.last.peak_bytes == 9 << 20 == torch.cuda.max_memory_allocated()

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    meter.annotate("no model", None)
    meter.annotate("no model", None)
assert [each.category for each in caught] == [SpillwayWarning], caught
"""

RECORDING = """
import sys, torch, spillway
if sys.argv[1] in ("full", "plain"):
    spillway.install(sys.argv[1])
from spillway.integrations._recording import Recording

def hold(size):
    return torch.zeros(size, dtype=torch.uint8, device="cuda")

for turn in range(2):  # the first brings CUDA into use
    kept = None
    with Recording(torch) as recording:
        more = hold(3000)
        del more
        kept = hold(1000)
    (peak,) = recording.peaks
    assert (peak.before_bytes, peak.peak_bytes, peak.left_bytes) == (0, 3000, 1000), peak
    assert bool(peak.lines) == (sys.argv[1] in ("full", "native")), peak
    for line in peak.lines:
        assert (line.bytes, line.blocks) == (3000, 1) and line.place.endswith("8 in hold"), line
with Recording(torch) as recording:
    pass
assert recording.peaks == []
"""

RANKS = """
import os, sys, tempfile, torch
from spillway.integrations._steps import largest_over_ranks
with tempfile.TemporaryDirectory() as folder:
    child = os.fork()
    rank = int(child == 0)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = largest_over_ranks({"first": 10 + rank, "second": 20 - rank})
    assert found == {"first": 11, "second": 20}, found
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python that has imported what all need."""
    given = {**os.environ, "PYTHONWARNINGS": "ignore", **environment}
    command = [warm.python(*MODULES), *words]
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False)


class Callbacks(unittest.TestCase):
    def passes(self, code: str, *words: str) -> None:
        done = run("-c", code, *words)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_a_step_takes(self) -> None:
        self.passes(METER)

    def test_what_a_stretch_takes_under_each_allocator(self) -> None:
        for allocator in ("full", "plain", "native"):
            with self.subTest(allocator):
                self.passes(RECORDING, allocator)
        # PyTorch reads the setting when it is imported.
        given = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
        subprocess.run([sys.executable, "-c", RECORDING, "cudaMallocAsync"], env=given, check=True)

    def test_the_largest_of_all_ranks(self) -> None:
        self.passes(RANKS)

    def test_the_trainer_of_hugging_face(self) -> None:
        for allocator in ("spillway", "native"):
            with self.subTest(allocator):
                self.passes(HUGGING_FACE, allocator, str(EXAMPLES))

    def test_its_example(self) -> None:
        done = run(str(EXAMPLES / "hugging_face_memory.py"))
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [ast.literal_eval(line) for line in done.stdout.splitlines() if line.startswith("{'step'")]
        self.assertEqual([row["step"] for row in rows if "memory/step_peak_gib" in row], [2, 4, 6])

    def test_the_trainer_of_lightning(self) -> None:
        for allocator in ("spillway", "native"):
            with self.subTest(allocator):
                self.passes(LIGHTNING, allocator, str(EXAMPLES))

    def test_the_example_of_lightning(self) -> None:
        done = run(str(EXAMPLES / "lightning_memory.py"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("memory/step_peak_gib", done.stdout)

    @unittest.skipUnless(
        "SPILLWAY_TEST_NEWEST" in os.environ, "W&B is among the packages of python.integrations_newest"
    )
    def test_both_trainers_log_to_weights_and_biases(self) -> None:
        hugging_face = str(EXAMPLES / "hugging_face_memory.py")
        for words, steps in (((hugging_face, "wandb"), 3), (("-c", LIGHTNING_TO_WANDB, str(EXAMPLES)), 2)):
            with self.subTest(words[0]), tempfile.TemporaryDirectory() as folder:
                done = run(*words, folder, WANDB_MODE="offline", WANDB_DIR=folder, WANDB_SILENT="true")
                self.assertEqual(done.returncode, 0, done.stderr)
                (log,) = Path(folder).rglob("*.wandb")
                self.assertGreaterEqual(log.read_bytes().count(b"memory/step_peak_gib"), steps)

    def test_nothing_is_imported_without_need(self) -> None:
        code = (
            "import sys, spillway; others = ('torch', 'transformers', 'lightning', 'IPython', 'pytest');"
            "assert not [name for name in others if name in sys.modules]"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
