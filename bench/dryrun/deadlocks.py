"""A program with a fault planted in one collective, for `spillway dryrun` to name.

    spillway dryrun --gpu-memory 8GiB --devices 4 -- torchrun --nproc-per-node 4 bench/dryrun/deadlocks.py all_gather

Each fault makes a job hang on GPUs; the last rank is at fault.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
RANKS = int(os.environ["WORLD_SIZE"])
LAST = RANKS - 1


def operations() -> None:
    """The last rank calls another operation."""
    x = torch.ones(4, device="cuda")
    if RANK == LAST:
        dist.all_reduce(x)
    else:
        dist.all_gather([torch.empty_like(x) for _ in range(RANKS)], x)


def all_reduce() -> None:
    """The last rank skips one, as where a loss is not finite, and comes to the next."""
    x = torch.ones(4, device="cuda")
    if RANK != LAST:
        dist.all_reduce(x)
    dist.all_reduce(torch.ones(2, device="cuda"))


def broadcast() -> None:
    """Ranks name themselves as the root."""
    dist.broadcast(torch.ones(8, device="cuda"), RANK // LAST)


def reduce_scatter() -> None:
    """The last rank has a longer sequence."""
    each = 4 if RANK == LAST else 2
    dist.reduce_scatter_tensor(torch.empty(each, device="cuda"), torch.ones(each * RANKS, device="cuda"))


def all_gather() -> None:
    """The last rank has no data left, and ends."""
    x = torch.ones(4, device="cuda")
    dist.barrier()
    if RANK != LAST:
        dist.all_gather([torch.empty_like(x) for _ in range(RANKS)], x)
        torch.cuda.synchronize()


def send() -> None:
    """Every rank sends a large tensor first and receives then."""
    x = torch.ones(1 << 20, device="cuda")
    pair = dist.new_group([0, LAST])
    if RANK in (0, LAST):
        dist.all_reduce(x, group=pair)
        dist.send(x, LAST - RANK, group=pair)
        dist.recv(x, LAST - RANK, group=pair)
        torch.cuda.synchronize()
    dist.barrier()


def groups() -> None:
    """The last rank takes two groups in the other order, and waits in between."""
    pairs = [dist.new_group([0, LAST]), dist.new_group([0, LAST])]
    if RANK == LAST:
        pairs.reverse()
    if RANK in (0, LAST):
        for pair in pairs:
            dist.all_reduce(torch.ones(1, device="cuda"), group=pair)
            torch.cuda.synchronize()
    dist.barrier()


def types() -> None:
    """The last rank has another type."""
    dist.all_reduce(torch.ones(4, device="cuda", dtype=torch.bfloat16 if RANK == LAST else torch.float32))


def main() -> None:
    faults = {fault.__name__: fault for fault in FAULTS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fault", choices=faults)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    faults[options.fault]()
    torch.cuda.synchronize()


FAULTS = (operations, all_reduce, broadcast, reduce_scatter, all_gather, send, groups, types)

if __name__ == "__main__":
    main()
