"""`spillway dryrun` on jobs of several ranks: small tensors arrive, and a job that would hang is named."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import warm

COMMAND = os.environ["SPILLWAY_COMMAND"]
ROOT = Path(__file__).resolve().parents[2]
DEADLOCKS = ROOT / "bench" / "dryrun" / "deadlocks.py"

BEGIN = """
import os, sys, time
import torch
import torch.distributed as dist

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")

def cuda(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).cuda()

def check(got, want):
    got = got.cpu()
    assert torch.equal(got, torch.tensor(want, dtype=got.dtype)), (rank, got, want)
"""

VALUES = f"""{BEGIN}
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8):
    x = cuda([rank + 1, 2 * rank], dtype)
    dist.all_reduce(x)
    check(x, [ranks * (ranks + 1) // 2, ranks * (ranks - 1)])
for operation, want in (("MAX", ranks), ("MIN", 1), ("AVG", (ranks + 1) / 2), ("PRODUCT", [1, 1, 2, 6][ranks])):
    x = cuda([rank + 1.0])
    dist.all_reduce(x, getattr(dist.ReduceOp, operation))
    check(x, [want])
x = cuda([rank * 1.5, 3])
dist.broadcast(x, 1)
check(x, [1.5, 3])
out = [torch.zeros(2, device="cuda") for _ in range(ranks)]
dist.all_gather(out, cuda([rank, -rank]))
for other, given in enumerate(out):
    check(given, [other, -other])
out = torch.zeros(1, device="cuda")
dist.reduce_scatter_tensor(out, cuda([10.0 * other + rank for other in range(ranks)]))
check(out, [10.0 * ranks * rank + ranks * (ranks - 1) / 2])
x = cuda([rank + 1.0])
dist.reduce(x, 0)
check(x, [ranks * (ranks + 1) / 2 if rank == 0 else rank + 1.0])
out = torch.zeros(ranks, device="cuda", dtype=torch.int64)
dist.all_to_all_single(out, cuda([100 * rank + other for other in range(ranks)], torch.int64))
check(out, [100 * other + rank for other in range(ranks)])
to, back = cuda([float(rank)]), torch.zeros(1, device="cuda")
ring = [dist.P2POp(dist.isend, to, (rank + 1) % ranks), dist.P2POp(dist.irecv, back, (rank - 1) % ranks)]
for work in dist.batch_isend_irecv(ring):
    work.wait()
check(back, [(rank - 1) % ranks])
# A rank that sends goes on, and what it does next is what its receiver waits for.
large = torch.zeros(1 << 20, device="cuda")
if rank == 0:
    sent = dist.isend(large, 1)
    dist.all_reduce(large)
elif rank == 1:
    dist.all_reduce(large)
    dist.recv(large, 0)
else:
    dist.all_reduce(large)
ends = dist.new_group([0, ranks - 1])
if rank in (0, ranks - 1):
    x = cuda([1.0])
    dist.all_reduce(x, group=ends)
    check(x, [2.0])
dist.barrier()
dist.destroy_process_group()
"""

SLOW = f"""{BEGIN}
x = cuda([1.0])
dist.all_reduce(x)
if rank == 1:
    time.sleep(10) if sys.argv[1] == "sleeps" else sum(range(300_000_000))
dist.all_reduce(x)
check(x, [4.0])
"""

# The garbage collector leaves the group alone, so its watchdog lives until the process is gone. usleep stands for what
# else takes time at the end, after PyTorch's own destructors.
LEFT = f"""
import ctypes, gc
ctypes.CDLL(None).__cxa_atexit(ctypes.CDLL(None).usleep, 500_000, None)
{BEGIN}
gc.freeze()
dist.all_reduce(cuda([1.0]))
"""

TOO_MUCH = f"""{BEGIN}
dist.barrier()
if rank == 1:
    torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
dist.all_reduce(cuda([1.0]))
torch.cuda.synchronize()
"""


def environment() -> dict[str, str]:
    """PYTHON_EXEC is the Python that torchrun starts its workers with."""
    kept = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return {**kept, "PYTHON_EXEC": warm.python("torch")}


def dryrun(ranks: int, program: str | Path, *words: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        script = program if isinstance(program, Path) else Path(folder) / "program.py"
        if isinstance(program, str):
            script.write_text(program)
        # A machine need not be able to look its own name up.
        address = ("--standalone", "--local-addr", "127.0.0.1")
        launcher = (warm.python("torch"), "-m", "torch.distributed.run", *address, "--nproc-per-node", str(ranks))
        options = ("--gpu-memory", "2GiB", "--devices", str(ranks), "--json")
        return subprocess.run(
            [COMMAND, "dryrun", *options, "--", *launcher, str(script), *words],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def report(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """The last thing on stderr."""
    said = "\n" + done.stderr
    return dict(json.loads(said[said.rindex("\n{\n") :]))


def some(*cases: Any) -> tuple[Any, ...]:
    """The first of them, or all where scripts/test --long asks for everything: each starts PyTorch several times."""
    return cases if "SPILLWAY_TEST_THOROUGH" in os.environ else cases[:1]


class Collectives(unittest.TestCase):
    def test_small_tensors_arrive(self) -> None:
        done = dryrun(3, VALUES)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_who_computes_long_or_sleeps_is_not_dead(self) -> None:
        for how in some("sleeps", "computes"):
            done = dryrun(2, SLOW, how)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_who_leaves_its_group_as_it_is_ends_well(self) -> None:
        done = dryrun(2, LEFT)
        self.assertEqual((done.returncode, report(done)["verdict"]), (0, "fits"), done.stderr)

    def test_out_of_memory_is_no_deadlock(self) -> None:
        done = dryrun(2, TOO_MUCH)
        self.assertEqual((done.returncode, report(done)["verdict"]), (2, "out of memory"), done.stderr)

    def named(self, fault: str, problem: str, *said: str) -> None:
        done = dryrun(3, DEADLOCKS, fault)
        self.assertEqual(done.returncode, 1, done.stderr)
        found = report(done)
        self.assertEqual(found["verdict"], "stuck", done.stderr)
        collectives = found["collectives"]
        assert isinstance(collectives, dict)
        self.assertEqual(collectives["problem"], problem, done.stderr)
        for line, pattern in zip(collectives["ranks"], said, strict=True):
            self.assertRegex(line, pattern)

    def test_different_collectives(self) -> None:
        at = r"at \S+deadlocks.py:\d+: "
        for fault, *said in some(
            (
                "operations",
                rf"^ranks 0,1 wait in all_gather of 4 x float32 {at}",
                rf"^rank 2 waits in all_reduce .* {at}",
            ),
            ("all_reduce", r"^ranks 0,1 .* of 4 x float32 \(sum\)", r"^rank 2 .* of 2 x float32 \(sum\)"),
            ("broadcast", r"^ranks 0,1 .* with root 0", r"^rank 2 .* with root 1"),
            ("reduce_scatter", r"^ranks 0,1 .* of 2 x float32", r"^rank 2 .* of 4 x float32"),
            ("types", r"^ranks 0,1 .* x float32", r"^rank 2 .* x bfloat16"),
        ):
            with self.subTest(fault):
                self.named(fault, "mismatch", *said)

    def test_ranks_that_wait_for_each_other(self) -> None:
        for fault, *said in some(
            ("all_gather", r"^ranks 0,1 wait in all_gather of 4 x float32 at \S+deadlocks.py", "^rank 2 has ended$"),
            (
                "send",
                r"^rank 0 waits in send of 1048576 x float32 to rank 2 at ",
                r"^rank 1 waits for other ranks at .*dist.barrier\(\)",
                r"^rank 2 waits in send of 1048576 x float32 to rank 0 at ",
            ),
            (
                "groups",
                r"^rank 0 waits in the start of a communicator of 2 ranks at ",
                r"^rank 1 waits for other ranks at ",
                r"^rank 2 waits for other ranks at ",
            ),
        ):
            with self.subTest(fault):
                self.named(fault, "deadlock", *said)


SHARDED = f"""{BEGIN}
import datetime
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
way = sys.argv[1]
if way == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model.cuda())
else:
    shape, names = ((ranks // 2, 2), ("replicas", "shards")) if way == "hsdp" else ((ranks,), ("shards",))
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=names)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.ones(8, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
every = [torch.zeros(1, device="cuda") for _ in range(ranks)]
dist.all_gather(every, cuda([rank + 1.0]))
total = cuda([rank + 1.0])
dist.all_reduce(total)
flag = cuda([int(rank == 0)], torch.int64)
dist.broadcast(flag, 0)
check(flag, [1])
dist.barrier()
# As torchtitan does after its first step.
for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=60), group)
place = [rank, ranks, os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], int(total.item())]
os.write(1, (" ".join(["ended", *map(str, place)]) + "\\n").encode())  # at once: ranks share the pipe
dist.destroy_process_group()
"""


def some_ranks(
    *words: str, launcher: tuple[str, ...] = (), program: str = SHARDED, way: str = "fsdp2"
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(program)
        command = [warm.python("torch"), *launcher, str(script), way]
        return subprocess.run(
            [COMMAND, "dryrun", "--gpu-memory", "2GiB", "--json", *words, "--", *command],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


class SomeRanks(unittest.TestCase):
    def peaks(self, done: subprocess.CompletedProcess[str]) -> list[tuple[int, int]]:
        self.assertEqual(done.returncode, 0, done.stderr)
        processes = report(done)["processes"]
        assert isinstance(processes, list)
        return [
            (process["rank"], device["peak_allocated_bytes"]) for process in processes for device in process["devices"]
        ]

    def test_memory_is_that_of_a_job_of_which_all_ranks_run(self) -> None:
        # A bucket of DDP's gradients is let go by a thread of PyTorch's, now or a little later.
        for way, most_difference in some(("fsdp2", 0), ("ddp", 5 << 20), ("hsdp", 0)):
            with self.subTest(way):
                of_two = self.peaks(some_ranks("--devices", "4", "--world-size", "4", "--ranks", "0,3", way=way))
                every = self.peaks(some_ranks("--devices", "4", "--world-size", "4", way=way))
                self.assertEqual([rank for rank, _ in every], [0, 1, 2, 3])
                self.assertEqual([rank for rank, _ in of_two], [0, 3])
                for (_, one), (_, other) in zip(of_two, [every[0], every[3]], strict=True):
                    self.assertLessEqual(abs(one - other), most_difference)

    def test_ranks_of_a_large_job(self) -> None:
        torchrun = ("-m", "torch.distributed.run", "--nnodes", "128", "--nproc-per-node", "8")
        for words, launcher in some(
            (("--ranks", "0,511"), torchrun),
            (("--world-size", "1024", "--ranks", "0,511"), ()),
            (("--world-size", "1024", "--ranks", "0,511"), ("-m", "torch.distributed.run", "--nproc-per-node", "2")),
        ):
            with self.subTest(words=words, launcher=launcher):
                done = some_ranks("--devices", "8", *words, launcher=launcher)
                self.assertEqual([rank for rank, _ in self.peaks(done)], [0, 511])
                # The 256 ranks nearest to 0 give 1, the others 512.
                total = 256 * 1 + 768 * 512
                ended = sorted(line for line in done.stdout.splitlines() if line.startswith("ended"))
                self.assertEqual(ended, [f"ended 0 1024 0 8 {total}", f"ended 511 1024 7 8 {total}"])

    def test_what_is_wrong_is_one_line(self) -> None:
        torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "4")
        for words, launcher, said in (
            (("--world-size", "8", "--ranks", "0,8"), (), "names no ranks"),
            (("--world-size", "8", "--ranks", "3-1"), (), "names no ranks"),
            (("--world-size", "8", "--ranks", "x"), (), "names no ranks"),
            (
                (
                    "--world-size",
                    "1000",
                ),
                (),
                "say which with --ranks",
            ),
            (("--ranks", "0"), (), "how many ranks does the job have"),
            (("--ranks", "0,4", "--devices", "4"), torchrun, "the job has ranks 0 to 3"),
            ((), torchrun, "give --devices 4"),
        ):
            with self.subTest(words=words):
                done = some_ranks(*words, launcher=launcher)
                self.assertEqual(done.returncode, 1, done.stderr)
                own = [line for line in done.stderr.splitlines() if line.startswith("spillway: ")]
                self.assertEqual(len(own), 1, done.stderr)
                self.assertIn(said, own[0])
                self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
