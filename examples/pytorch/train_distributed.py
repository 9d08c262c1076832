"""A small language model on several GPUs, one process for each.

spillway run -- torchrun --nproc-per-node 2 train_distributed.py --strategy fsdp
spillway dryrun --gpu-memory 8GiB --devices 2 -- torchrun --nproc-per-node 2 train_distributed.py --strategy fsdp

ddp: every process holds the whole model, and gradients are averaged in buckets. fsdp: every process holds a share of
each layer, and the rest of it while the layer runs (FSDP2, torch.distributed.fsdp.fully_shard).

On the simulated device the collectives of NCCL move no tensor and take no memory of their own: every process allocates
as it would, and trains on what was in its buffers.
"""

from __future__ import annotations

import os

import torch
from language_model import LanguageModel, parser, print_memory, random_text
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard


def distribute(model: LanguageModel, strategy: str, device: int) -> nn.Module:
    if strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[device])
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--strategy", choices=["ddp", "fsdp"], default="fsdp")
    options = arguments.parse_args()
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", device))
    model = distribute(LanguageModel(options.width, options.layers).cuda(), options.strategy, device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(options.steps):
        loss = model(random_text(options).cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print_memory(step)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
