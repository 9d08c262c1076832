"""`spillway dryrun` on jobs of several ranks: small tensors arrive, and a job that would hang is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

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

TOO_MUCH = f"""{BEGIN}
dist.barrier()
if rank == 1:
    torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
dist.all_reduce(cuda([1.0]))
torch.cuda.synchronize()
"""


def dryrun(ranks: int, program: str | Path, *words: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        script = program if isinstance(program, Path) else Path(folder) / "program.py"
        if isinstance(program, str):
            script.write_text(program)
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        # A machine need not be able to look its own name up.
        address = ("--standalone", "--local-addr", "127.0.0.1")
        launcher = (sys.executable, "-m", "torch.distributed.run", *address, "--nproc-per-node", str(ranks))
        options = ("--gpu-memory", "2GiB", "--devices", str(ranks), "--json")
        return subprocess.run(
            [COMMAND, "dryrun", *options, "--", *launcher, str(script), *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def report(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """The last thing on stderr."""
    return dict(json.loads(done.stderr[done.stderr.rindex("\n{\n") :]))


class Collectives(unittest.TestCase):
    def test_small_tensors_arrive(self) -> None:
        done = dryrun(3, VALUES)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_who_computes_long_or_sleeps_is_not_dead(self) -> None:
        for how in ("sleeps", "computes"):
            done = dryrun(2, SLOW, how)
            self.assertEqual(done.returncode, 0, done.stderr)

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
        for fault, *said in (
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
        for fault, *said in (
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


if __name__ == "__main__":
    unittest.main()
