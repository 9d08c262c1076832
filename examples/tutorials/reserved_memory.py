"""Ten blocks of 30 MiB, five of them freed, and one of 150 MiB: what the numbers of PyTorch say of each moment."""

import torch

MIB = 1 << 20


def block(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def show(moment: str) -> None:
    allocated, reserved = torch.cuda.memory_allocated() // MIB, torch.cuda.memory_reserved() // MIB
    print(f"{moment:24} allocated {allocated:3} MiB, reserved {reserved:3} MiB")


blocks = [block(30) for _ in range(10)]
show("ten blocks of 30 MiB")
del blocks[::2]
show("every other one freed")
large = block(150)
show("one of 150 MiB")
del blocks, large
show("all freed")
torch.cuda.empty_cache()
show("the cache given back")
