"""`spillway dryrun --values`: what is computed on the simulated device, and that what is not is known not to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import warm
from spillway._values import Waits

COMMAND = os.environ["SPILLWAY_COMMAND"]
TRAIN = Path(__file__).resolve().parents[2] / "bench" / "dryrun" / "train.py"


def dryrun(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text("import torch\n" + code)
        return of_words("dryrun", "--gpu-memory", "4GiB", *options, "--", warm.python("torch"), str(script))


def of_words(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run([COMMAND, *words], env=environment, capture_output=True, text=True, check=False)


SIZES = """
x = torch.tensor([5, 0, 3, 0, 5, 1], device="cuda")
print(x.nonzero().flatten().tolist(), x[x > 2].tolist(), torch.where(x == 0)[0].tolist())
print([each.tolist() for each in torch.unique(x, return_inverse=True, return_counts=True)])
print(torch.unique_consecutive(torch.tensor([1, 1, 2, 1], device="cuda")).tolist())
print(torch.tensor([[1, 2], [0, 1], [1, 2]], device="cuda").unique(dim=0).tolist())
print(torch.bincount(x).tolist(), torch.repeat_interleave(torch.arange(3, device="cuda"), x[2:5]).tolist())
print(torch.equal(x, x.clone()), torch.equal(x, x + 1), torch.masked_select(x, x > 4).tolist(), x.argmax().item())
print(torch.nn.functional.one_hot(x).shape, torch.histc(x, bins=6, min=0, max=5).tolist())
print(torch.arange(1 << 21, device="cuda").ne(0).sum().item())
print(torch.arange(200_000, device="cuda").topk(2).indices.tolist())  # in parts, of as many as the device has room for
"""
SIZES_ARE = """[0, 2, 4, 5] [5, 3, 5] [1, 3]
[[0, 1, 3, 5], [3, 0, 2, 0, 3, 1], [2, 1, 1, 2]]
[1, 2, 1]
[[0, 1], [1, 2]]
[2, 1, 0, 1, 0, 2] [0, 0, 0, 2, 2, 2, 2, 2]
True False [5, 5] 0
torch.Size([6, 6]) [2, 1, 0, 1, 0, 2]
2097151
[199999, 199998]
"""

# Values that were computed lie in memory that another tensor gets, of which nobody knows anything.
COPIES = """
def shared():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssShmem"))
numbers = torch.arange(1 << 21, device="cuda")
last = numbers.clone()[-1].item()
del numbers
before = shared()
unknown = torch.empty(1 << 22, device="cuda")
copies = [unknown.clone() for i in range(30)]
print(last, shared() - before < 100_000)
"""

VIEWS = """
y = torch.zeros(4, 6, device="cuda")
y[1:3, ::2] = torch.arange(6.0, device="cuda").view(2, 3)
y.t()[5].fill_(-1)
y.add_(y).clamp_(max=6)
out = torch.empty(0, device="cuda")
torch.sum(y, 1, out=out)
z = torch.empty(6, device="cuda")
z[2:4] = 7
lists = [torch.ones(3, device="cuda"), torch.ones((), device="cuda")]
torch._foreach_mul_(lists, 3)
c = torch.complex(y[1], y[2]).conj()
print(y.tolist(), out.tolist(), z[2:4].tolist(), [each.tolist() for each in lists], (c * 2).imag.tolist())
w = torch.randn(3, 3, device="cuda", dtype=torch.bfloat16)
host = w.cpu()
print(torch.equal((w @ w).cpu(), host @ host))
print(torch.equal(w.softmax(-1, torch.float).cpu(), host.softmax(-1, torch.float)))
"""

SCALER = """
model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
for factor in (1.0, float("inf"), 1.0):
    before = model.weight.detach().clone()
    scaler.scale((model(torch.ones(2, 4, device="cuda")) * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(scaler.get_scale(), torch.equal(before, model.weight))
"""

# Of gradients too large to be computed.
GROWING = """
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
for _ in range(3):
    scaler.scale(model(torch.randn(64, 1024, device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
print(scaler.get_scale(), scaler._get_growth_tracker())
"""

LOOP = """
x, steps = torch.full((8,), 100.0, device="cuda"), 0
while (x * x - 2).abs().max() > 1e-5:  # Newton's
    x = (x + 2 / x) / 2
    steps += 1
print(steps, round(x[3].item(), 4))
lengths = torch.tensor([3, 5, 2], device="cuda")
mask = torch.arange(int(lengths.max()), device="cuda") < lengths[:, None]
print(mask.int().tolist(), int(mask.sum()))
positions = torch.arange(4096, device="cuda").expand(4, -1)
packed = (positions.diff(prepend=positions[:, :1] - 1) != 1).cumsum(-1)
print(bool((packed[:, -1] == 0).all()))
two = torch.cat([torch.arange(2000, device="cuda"), torch.arange(96, device="cuda")])[None]
print(bool(((two.diff(prepend=two[:, :1] - 1) != 1).cumsum(-1)[:, -1] == 0).all()))
"""

UNREAL = """
def look(x):
    total = x.sum()
    if total > 0:
        pass
    kept = total.cpu()
    for _ in range(3):
        float(kept)
x = torch.randn(1 << 20, device="cuda")
look(x)
print(len(x.nonzero()) > 0, torch.ones(3, device="cuda").sum().item())
logits = torch.randn(4096, 8, device="cuda")
counts = torch.bincount(logits.topk(2).indices.flatten(), minlength=8)
print(len(counts), counts.min().item() > 900)
"""

CHECKPOINTED = """
import functools
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5), torch.nn.ReLU()).cuda()
x = torch.randn(4, 16, device="cuda")
gradients = []
again = [functools.partial(checkpoint, layer, use_reentrant=each) for each in (False, True)]
for call in (layer, *again):
    torch.manual_seed(1)
    layer.zero_grad()
    call(x.clone().requires_grad_()).square().sum().backward()
    gradients.append(layer[0].weight.grad.clone())
print(gradients[0].abs().sum().item() > 0, *(torch.equal(gradients[0], each) for each in gradients))
before = torch.get_rng_state()
torch.nn.functional.dropout(x)
torch.randperm(5, device="cuda")
print(torch.equal(before, torch.get_rng_state()))
compiled = torch.compile(lambda x: (x.sin() + 1).sum(), backend="aot_eager")
print(torch.allclose(compiled(x).cpu(), (x.cpu().sin() + 1).sum()))
print(torch.func.vmap(lambda row: row.sum())(x).cpu().allclose(x.cpu().sum(1)))
"""

GRAPHED = """
x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
x.fill_(2)
graph.replay()
y.tolist()
print(x.tolist())
"""

ENDLESS = """
x = torch.rand(1 << 20, device="cuda")
for end in (True, False):
    while bool(x.mean() < 1e-4) != end: pass
error = 1
while error > 1e-4:
    error = float(1 + x.mean().abs().cpu())
print("over")
"""

# What ends the first loop keeps the second one going.
LOOPS_OF_ONE_LINE = """
x, seen = torch.rand(1 << 20, device="cuda"), []
def look():
    seen.append(x.mean() > 2)
    return bool(seen[-1])
while not look(): pass
while look(): pass
while not look(): pass
print("over")
"""

# The second of two lines ends the first loop; it takes both to end the second.
LOOPS_OF_TWO_LINES = """
x = torch.rand(1 << 20, device="cuda")
big = lambda: bool(x.mean() > 2)
while True:
    progress = x.sum().item()
    if big(): break
is_near = lambda: bool(x.amax() > 3)
while not (
    big()
    & is_near()
): pass
print("over")
"""

TRAFFIC = """
import hashlib, itertools
torch.cuda.memory._record_memory_history(max_entries=1 << 20, stacks="python")
torch.manual_seed(0)
layers = (torch.nn.Embedding(1000, 256), torch.nn.Linear(256, 1024), torch.nn.Dropout(0.1), torch.nn.Linear(1024, 1000))
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
tokens = torch.randint(0, 1000, (8, 64), device="cuda")
for _ in range(2):
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss.isnan().any().item()
    model(tokens).argmax(-1).eq(tokens).sum()
trace = []
events = torch.cuda.memory._snapshot()["device_traces"][0]
for is_alloc, run in itertools.groupby(events, lambda each: each["action"] == "alloc"):
    made = [(each["action"], each["size"], each["stream"]) for each in run]
    trace.append(made if is_alloc else sorted(made))  # autocast gives its copies back in an order of addresses
print(len(trace), hashlib.sha256(repr(trace).encode()).hexdigest())
"""

TRANSFORMERS = """
import json, sys, transformers
sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
sizes |= {"num_key_value_heads": 2, "output_router_logits": True, "vocab_size": 128}
mixtral = transformers.MixtralConfig(**sizes, num_local_experts=4)
qwen = transformers.Qwen3MoeConfig(**sizes, moe_intermediate_size=48, num_experts=8, num_experts_per_tok=2, head_dim=16)
losses = []
for config in (mixtral, qwen):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    tokens = torch.randint(0, 128, (2, 24))
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).train().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(3):
            loss = model(input_ids=tokens.to(device), labels=tokens.to(device)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
print(max(abs(a - b) for begin in (0, 6) for a, b in zip(losses[begin:], losses[begin + 3 : begin + 6])) < 1e-4)
"""


@unittest.skipIf("SPILLWAY_TEST_GPU" in os.environ, "dryrun is for machines without a GPU")
class Computed(unittest.TestCase):
    def says(self, code: str, expected: str, *options: str) -> None:
        """The program does, and looks at nothing that is not real."""
        done = dryrun(code, *options)
        self.assertEqual((done.returncode, done.stdout), (0, expected), done.stderr)
        self.assertNotIn("not real", done.stderr)

    def test_sizes_that_depend_on_values(self) -> None:
        self.says(SIZES, SIZES_ARE)

    def test_copies_of_what_nobody_knows_take_no_memory_of_the_host(self) -> None:
        done = dryrun(COPIES, "--allocator", "native")
        self.assertEqual(done.stdout, "2097151 True\n", done.stderr)

    def test_views_and_writes_in_place(self) -> None:
        expected = dryrun(VIEWS.replace('"cuda"', '"cpu"'), "--values", "none").stdout
        self.assertIn("True\nTrue", expected)
        self.says(VIEWS, expected)

    def test_a_scaler_that_finds_infinity(self) -> None:
        self.says(SCALER, "65536.0 False\n32768.0 True\n32768.0 False\n")

    def test_loops_masks_and_packed_sequences(self) -> None:
        masks = "[[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]] 10"
        self.says(LOOP, f"9 1.4142\n{masks}\nTrue\nFalse\n")

    def test_regions_that_are_computed_again_and_other_layers_of_the_dispatcher(self) -> None:
        self.says(CHECKPOINTED, "True True True True\nTrue\nTrue\nTrue\n")

    def test_models_of_transformers_that_route_tokens(self) -> None:
        self.says(TRANSFORMERS, "True\n", "--values", "all")

    def test_losses_are_those_of_the_host(self) -> None:
        for more in ([], ["--experts", "4"]):
            words = [sys.executable, str(TRAIN), "--steps", "5", *more]
            host = subprocess.run([*words, "--device", "cpu"], capture_output=True, text=True, check=True)
            done = of_words("dryrun", "--gpu-memory", "2GiB", "--values", "all", "--", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            pairs = zip(json.loads(host.stdout)["losses"], json.loads(done.stdout)["losses"], strict=True)
            self.assertLess(max(abs(a - b) for a, b in pairs), 1e-4)


@unittest.skipIf("SPILLWAY_TEST_GPU" in os.environ, "dryrun is for machines without a GPU")
class NotComputed(unittest.TestCase):
    def report(self, code: str, *options: str) -> Any:
        done = dryrun(code, "--json", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stderr)["processes"][0]

    def test_a_look_at_what_is_not_real_is_reported_with_its_line(self) -> None:
        done = dryrun(UNREAL)
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (0, "8 True"), done.stderr)
        for line in (
            "5: if total > 0: (1 times)",
            "7: kept = total.cpu()",
            "9: float(kept) (3 times)",
            "12: print(len(",
        ):
            self.assertIn(f"program.py:{line}", done.stderr)
        reads = self.report(UNREAL)["unreal_reads"]
        self.assertEqual({read["times"] for read in reads if read["where"].endswith("float(kept)")}, {3})

    def test_gradients_are_taken_to_be_finite(self) -> None:
        done = dryrun(GROWING)
        self.assertEqual((done.returncode, done.stdout), (0, "2048.0 1\n"), done.stderr)
        self.assertIn("program.py:8: scaler.step(optimizer)", done.stderr)

    def test_none_computes_nothing(self) -> None:
        report = self.report("print(torch.arange(4, device='cuda').tolist())", "--values", "none")
        self.assertEqual((report["values"], report["operators_computed"], report["unreal_reads"]), ("none", 0, []))

    def test_what_a_graph_computes_is_not_real(self) -> None:
        reads = self.report(GRAPHED)["unreal_reads"]
        self.assertEqual([read["where"].split(": ", 1)[1] for read in reads], ["y.tolist()"])

    def test_no_loop_waits_for_ever_for_what_is_not_real(self) -> None:
        done = dryrun(ENDLESS)
        self.assertEqual((done.returncode, done.stdout), (0, "over\n"), done.stderr)
        for line in (r"5: while bool\(.*", r"8: error = .*"):
            ended = rf"program.py:{line} \(1\d{{4}} times; a loop waited there for another value, and got one"
            self.assertRegex(done.stderr, ended)

    def test_one_line_may_wait_in_several_loops(self) -> None:
        done = dryrun(LOOPS_OF_ONE_LINE)
        self.assertEqual((done.returncode, done.stdout), (0, "over\n"), done.stderr)
        (read,) = self.report(LOOPS_OF_ONE_LINE)["unreal_reads"]
        self.assertTrue(read["loops_ended"] > 0 and 10_000 <= read["times"] <= 10_400, read)

    def test_a_loop_may_wait_on_several_lines(self) -> None:
        done = dryrun(LOOPS_OF_TWO_LINES)
        self.assertEqual((done.returncode, done.stdout), (0, "over\n"), done.stderr)
        self.assertIn("a loop waited there for another value, and got one", done.stderr)

    def test_lines_that_look_now_and_then_are_no_loop(self) -> None:
        waits = Waits()
        step, now_and_then = ("a.py", 1), ("a.py", 2)
        for i in range(60_000):
            self.assertIsNone(waits.look(step))
            if i % 1000 == 999:
                self.assertIsNone(waits.look(now_and_then))

    def test_every_combination_of_answers_has_its_turn(self) -> None:
        waits = Waits()
        lines = [("a.py", number) for number in range(3)]
        seen = [frozenset(waits.negated)]
        for look in range(3 * 10_000 + 3 * 800):
            if waits.look(lines[(look * 2) % 3]) is not None:
                seen.append(frozenset(waits.negated))
        self.assertEqual(len(set(seen[:8])), 8, seen)

    def test_a_line_that_looked_before_a_loop_is_not_of_it(self) -> None:
        waits = Waits()
        before, loop = ("a.py", 1), ("a.py", 2)
        for line in (before, loop, before, before):
            self.assertIsNone(waits.look(line))
        changed = [waits.look(loop) for _ in range(10_100)]
        self.assertEqual({line for line in changed if line is not None}, {loop})

    def test_the_allocator_sees_the_same_whatever_is_computed(self) -> None:
        for allocator in ("spillway", "native"):
            seen = [dryrun(TRAFFIC, "--values", each, "--allocator", allocator) for each in ("none", "small", "all")]
            self.assertEqual({done.returncode for done in seen}, {0}, seen[-1].stderr)
            self.assertEqual(len({done.stdout for done in seen}), 1, [done.stdout for done in seen])

    def test_options(self) -> None:
        for words in (["--values", "some"], ["--values", "all", "--no-bytes"]):
            done = dryrun("", *words)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("--values", done.stderr)


if __name__ == "__main__":
    unittest.main()
