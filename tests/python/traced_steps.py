"""Training steps for trace_model_test: each function makes one, for fake tensors and for the simulated device alike."""

from __future__ import annotations

import atexit
import copy
import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import library as operators
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "pytorch"))
from language_model import VOCABULARY, LanguageModel  # noqa: E402

# As the simulated device has no cuDNN, the comparison is without.
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)

Step = Callable[[], object]


def transformer(recompute: bool = False, bf16: bool = False, accumulate: int = 1, **options: Any) -> Step:
    model = LanguageModel(128, 2, recompute).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step() -> None:
        for _ in range(accumulate):
            text = torch.randint(VOCABULARY, (4, 129)).cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                loss = model(text)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def foreach() -> Step:
    return transformer(foreach=True)


def fused() -> Step:
    return transformer(fused=True)


def by_default() -> Step:
    """PyTorch chooses foreach on a device; by the type of fake tensors it would choose the loop."""
    return transformer()


def checkpointed() -> Step:
    return transformer(recompute=True)


def bf16() -> Step:
    return transformer(bf16=True)


def accumulated() -> Step:
    return transformer(accumulate=2)


def convolutions() -> Step:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        loss = nn.functional.cross_entropy(model(torch.randn(8, 3, 64, 64).cuda()), torch.randint(10, (8,)).cuda())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def wide_sums() -> Step:
    """Reductions that several blocks of threads share take buffers; one value has many gradients."""
    weight = torch.zeros(4096, 512, device="cuda", requires_grad=True)

    def step() -> None:
        scaled = weight * 2
        (scaled.sum(0).mean() + scaled.mean(1).amax() + scaled.exp().sum() + scaled.sin().sum()).backward()  # type: ignore[no-untyped-call]
        weight.grad = None

    return step


def own_bias() -> Step:
    """Beside linear's bias, which PyTorch adds in place to what it alone holds: one that the program adds."""
    weight = torch.zeros(512, 512, device="cuda")
    bias = torch.zeros(512, device="cuda")

    def step() -> None:
        states = torch.zeros(64, 8, 512, device="cuda").transpose(0, 1)
        (torch.matmul(states, weight) + bias).sum()

    return step


def copied() -> Step:
    """Deep copies: an encoder's layers are copies of one, and a teacher is a copy of the student on the device."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 2, 1024, batch_first=True), 2).cuda()
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        data = torch.randn(4, 128, 128).cuda()
        nn.functional.mse_loss(model(data), teacher(data)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---- what a trace must report or refuse


def _training(between: Callable[[torch.Tensor], object]) -> Step:
    model = nn.Linear(64, 64).cuda()

    def step() -> None:
        result = model(torch.zeros(8, 64, device="cuda"))
        between(result)
        result.sum().backward()

    return step


def reads_a_value() -> Step:
    return _training(lambda result: print("loss", result.sum().item()))


def branches() -> Step:
    return _training(lambda result: torch.empty(1 << 20, device="cuda") if result.sum() > 0 else None)


def scaled() -> Step:
    """What only works if values are answered: a gradient scaler, from pinned memory."""
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cuda")

    def step() -> None:
        data = torch.zeros(8, 64).pin_memory().cuda(non_blocking=True)
        with torch.autocast("cuda", torch.float16):
            loss = model(data).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def lengths() -> Step:
    """Small integers of the host are real: the longest of three texts says how large the batch is."""

    def step() -> None:
        lengths = torch.tensor([5, 9, 3])
        longest = int(lengths.max())
        mask = torch.arange(longest)[None] < lengths[:, None]
        mask[:, :2] &= ~torch.zeros(2, dtype=torch.bool)
        assert (longest, mask.sum().item(), mask.nonzero().shape) == (9, 17, (17, 2))
        torch.zeros(len(lengths), longest, 1 << 16, device="cuda").masked_fill_(mask.cuda()[..., None], 1)

    return step


def overwritten() -> Step:
    """What the host takes from the device is not."""

    def step() -> None:
        counts = torch.zeros(2, dtype=torch.int64)
        counts.copy_(torch.ones(2, dtype=torch.int64, device="cuda"))
        torch.zeros(1 + int(counts[1]), device="cuda")

    return step


def selects() -> Step:
    return _training(lambda result: result[result > 0])


def nonzero() -> Step:
    return _training(lambda result: result.nonzero())


def picks() -> Step:
    """Asserts what each operator finds, of a quarter."""

    def step() -> None:
        x = torch.ones(8, 16, device="cuda")
        mask = x > 0
        rows = mask[:, 0]
        found = {
            "nonzero": (x.nonzero(), (32, 2)),
            "masked_select": (x.masked_select(mask), (32,)),
            "x[mask]": (x[mask], (32,)),
            "x[rows]": (x[rows], (2, 16)),
            "x[rows, 0]": (x[rows, 0], (2,)),
            "where": (torch.where(mask)[0], (32,)),
            "unique": (torch.unique(x), (32,)),
            "unique of rows": (torch.unique(x, dim=0), (2, 16)),
            "unique_consecutive": (torch.unique_consecutive(x.flatten()), (32,)),
        }
        for name, (result, shape) in found.items():
            assert tuple(result.shape) == shape, f"{name}: {tuple(result.shape)}"
        counted = torch.unique(x, return_inverse=True, return_counts=True)
        assert [tuple(each.shape) for each in counted] == [(32,), (8, 16), (32,)], counted

    return step


@operators.custom_op("traced_steps::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def custom_operator() -> Step:
    return _training(doubled)


def captured() -> Step:
    def capture(result: torch.Tensor) -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            result.sum()

    return _training(capture)


def data_parallel() -> Step:
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).cuda())
    return lambda: model(torch.zeros(1, 4, device="cuda"))


def trained(model: nn.Module) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.ones(512, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def of_layers() -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()


def job() -> int:
    """Begins it; answers how many ranks it has."""
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl")
    atexit.register(dist.destroy_process_group)
    return dist.get_world_size()


def buckets() -> Step:
    job()
    return trained(nn.parallel.DistributedDataParallel(of_layers()))


def sharded() -> Step:
    job()
    model = of_layers()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return trained(model)


def tensor_parallel() -> Step:
    mesh = init_device_mesh("cuda", (job(),))
    ways: dict[str, ParallelStyle] = {str(at): RowwiseParallel() if at % 2 else ColwiseParallel() for at in range(4)}
    return trained(parallelize_module(of_layers(), mesh, ways))


def sharded_in_two_ways() -> Step:
    """Over ranks that share a batch and ranks that do not; filled after it is sharded, with clipped gradients."""
    mesh = init_device_mesh("cuda", (job() // 2, 2), mesh_dim_names=("data", "tensor"))
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    ways: dict[str, ParallelStyle] = {str(at): RowwiseParallel() if at % 2 else ColwiseParallel() for at in range(4)}
    parallelize_module(model, mesh["tensor"], ways)
    for layer in model:
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        model(torch.ones(512, 256, device="cuda")).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def counted_by_all() -> Step:
    """A number that other ranks have a part in, in a tensor of the host."""
    job()

    def step() -> None:
        count = torch.tensor([3])
        dist.all_reduce(count)
        torch.zeros(1 + int(count), device="cuda")

    return step


def pipelined() -> Step:
    ranks = job()
    rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device())
    layers = of_layers()[rank * 4 // ranks : (rank + 1) * 4 // ranks]
    batch = torch.ones(512, 256, device=device)
    quarter = batch[:128].clone().requires_grad_(rank > 0)
    stage = PipelineStage(layers, rank, ranks, device, input_args=quarter, output_args=quarter.detach().clone())
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(layers.parameters())

    def step() -> None:
        schedule.step(*([batch] if rank == 0 else []), target=batch if rank == ranks - 1 else None)
        optimizer.step()
        optimizer.zero_grad()

    return step


def compiled_eager() -> Step:
    model = torch.compile(of_layers(), backend="aot_eager")
    assert isinstance(model, nn.Module)
    return trained(model)


def compiled() -> Step:
    model = torch.compile(nn.Linear(64, 64).cuda())
    return lambda: model(torch.zeros(8, 64, device="cuda"))


def asks_for_memory() -> Step:
    def step() -> None:
        kept = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 1 << 20, torch.cuda.memory_allocated()
        del kept
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.max_memory_allocated() == 1 << 20
        torch.cuda.mem_get_info()

    return step


def allocates_on_a_thread() -> Step:
    def step() -> None:
        worker = threading.Thread(target=lambda: torch.zeros(1 << 20, device="cuda"))
        worker.start()
        worker.join()
        torch.zeros(1, device="cuda")

    return step


def looks() -> Step:
    return _training(lambda result: torch.rand(1 << 20, device="cuda").mean().item())


def looks_and_asks() -> Step:
    """For what is free too."""
    step = looks()

    def and_asks() -> None:
        torch.cuda.mem_get_info()
        step()

    return and_asks


def keeps_a_history() -> Step:
    step = fused()

    def and_ends_it() -> None:
        torch.cuda.memory._record_memory_history(max_entries=10)
        step()
        torch.cuda.memory._record_memory_history(None)
        torch._C._cuda_record_memory_history(None)  # type: ignore[call-arg]

    return and_ends_it


def resizes() -> Step:
    def step() -> None:
        unit = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        unit.untyped_storage().resize_(0)
        torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        unit.untyped_storage().resize_(1 << 20)

    return step


def makes_cycles() -> Step:
    def step() -> None:
        cycle: list[object] = [torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")]
        cycle.append(cycle)
        assert not gc.isenabled()

    return step


def fails() -> Step:
    raise ValueError("no data\nin two lines")


def no_step() -> int:
    return 3


def ends() -> Step:
    sys.exit(0)


def on_the_host() -> Step:
    return lambda: torch.zeros(8) + 1
