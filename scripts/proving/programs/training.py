"""Trains a small language model on one allocator and prints one JSON line: bits, times, memory, calls of the driver.

usage: training.py native|expandable|spillway [options]; the preload library is put under `native` by LD_PRELOAD
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SEED = 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("allocator", choices=("native", "expandable", "spillway"))
    parser.add_argument(
        "--exact", action="store_true", help="deterministic kernels: what is printed of bits can be compared"
    )
    parser.add_argument("--varied", action="store_true", help="texts of another length in each step")
    parser.add_argument("--limit", type=int, help="of device memory, in bytes; running out is an answer then")
    parser.add_argument("--activations", choices=("kept", "spillway", "save_on_cpu"), default="kept")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    return parser.parse_args()


options = arguments()
if options.allocator == "expandable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch  # noqa: E402  the allocator is chosen before

sys.path.insert(0, str(ROOT / "examples" / "pytorch"))
from language_model import VOCABULARY, LanguageModel  # noqa: E402

if options.allocator == "spillway" or options.activations == "spillway":
    import spillway

    spillway.install()
if "SPILLWAY_SIM" in os.environ:  # neither is simulated
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def driver_calls() -> dict[str, int]:
    if options.allocator != "spillway":
        return {}
    from spillway._library import check, library

    with tempfile.NamedTemporaryFile() as file:
        check(library().spw_dump(file.name.encode(), b"json"))
        calls: dict[str, int] = json.loads(Path(file.name).read_text())["devices"][0]["stats"]["driver_calls"]
    return calls


def texts() -> Iterator[torch.Tensor]:
    """On the host, the same for every allocator."""
    rng = random.Random(SEED)
    for _ in range(options.steps):
        length = rng.choice((64, 96, 160, 256, 384, 512)) if options.varied else 256
        batch = max(1, int(options.batch * rng.uniform(0.4, 1.0))) if options.varied else options.batch
        yield torch.randint(VOCABULARY, (batch, length + 1))


def digest(tensors: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(each.detach().cpu().numpy().tobytes() for each in tensors)).hexdigest()


def away(model: LanguageModel) -> contextlib.AbstractContextManager[Any]:
    """Where a step's activations are kept."""
    if options.activations == "save_on_cpu":
        return torch.autograd.graph.save_on_cpu(pin_memory=True)
    return contextlib.nullcontext()


def train() -> dict[str, Any]:
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(options.exact)
    model = LanguageModel(options.width, options.layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    if options.activations == "spillway":
        spillway.offload_activations(model, ["layers.*"], min_bytes=64 << 10)
    losses, times = [], []
    before: dict[str, int] = {}
    for number, text in enumerate(texts()):
        if number == options.steps // 2:
            torch.cuda.synchronize()
            before = driver_calls()
        begin = time.perf_counter()
        with away(model):
            loss = model(text.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    after = driver_calls()
    return {
        "losses": digest(losses),
        "weights": digest(list(model.parameters())),
        "driver_calls": {
            name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)
        },
        "first_step_ms": round(times[0] * 1e3, 3),
        "median_step_ms": round(statistics.median(times[len(times) // 2 :]) * 1e3, 3),
        "worst_step_ms": round(max(times[len(times) // 2 :]) * 1e3, 3),
    }


def main() -> None:
    found: dict[str, Any] = {"allocator": options.allocator, "survived": True}
    if options.limit:
        torch.cuda.set_per_process_memory_fraction(options.limit / torch.cuda.mem_get_info()[1])
    try:
        found.update(train())
    except torch.OutOfMemoryError as problem:
        if not options.limit:
            raise
        found.update(survived=False, error=str(problem)[:300])
    found["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    found["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
