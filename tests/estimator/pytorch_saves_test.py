"""What PyTorch itself holds, on the simulated device, beside what `spillway estimate` counts: saved tensors of an eager
Llama layer, the loss, a softmax of several kernels and the temporaries of an optimizer step. Prints "ok".

    pytorch_saves_test.py SPILLWAY_COMMAND
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

HIDDEN, HEADS, HEAD_DIM, WIDTH, VOCABULARY, BATCH, TOKENS = 1024, 8, 128, 2816, 32000, 2, 1024
RUN = f"""
[model]
model_type = "llama"
hidden_size = {HIDDEN}
intermediate_size = {WIDTH}
num_hidden_layers = 1
num_attention_heads = {HEADS}
num_key_value_heads = {HEADS}
head_dim = {HEAD_DIM}
vocab_size = {VOCABULARY}

[train]
micro_batch = {BATCH}
sequence = {TOKENS}
precision = "bf16"
"""
DEVICE = torch.device("cuda")


def linear(columns: int, rows: int) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False, device=DEVICE, dtype=torch.bfloat16)


class Layer(nn.Module):
    """As transformers writes it, with one kernel for a norm."""

    def __init__(self) -> None:
        super().__init__()
        inner = HEADS * HEAD_DIM
        self.norms = nn.ParameterList(torch.ones(HIDDEN, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
        self.query, self.key, self.value = (linear(HIDDEN, inner) for _ in range(3))
        self.out = linear(inner, HIDDEN)
        self.gate, self.up = linear(HIDDEN, WIDTH), linear(HIDDEN, WIDTH)
        self.down = linear(WIDTH, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.rms_norm(x, (HIDDEN,), self.norms[0])
        query = self.query(y).view(BATCH, TOKENS, HEADS, HEAD_DIM).transpose(1, 2)
        key = self.key(y).view(BATCH, TOKENS, HEADS, HEAD_DIM).transpose(1, 2)
        value = self.value(y).view(BATCH, TOKENS, HEADS, HEAD_DIM).transpose(1, 2)
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(BATCH, TOKENS, -1))
        y = functional.rms_norm(x, (HIDDEN,), self.norms[1])
        out: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return out


def saved_bytes(module: nn.Module, x: torch.Tensor) -> int:
    """Storages that the backward pass will read, parameters left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_cuda and storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(x)
    assert output.shape == x.shape
    return sum(held.values())


def peak_of(program: Callable[[], object]) -> int:
    """Bytes above what is allocated now, while it runs."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = program()
    del kept
    return torch.cuda.max_memory_allocated() - before


def bucket(spillway: str, name: str, *sets: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(RUN)
        choices = [word for each in sets for word in ("--set", each)]
        answered = subprocess.run(
            [spillway, "estimate", path, "--json", "--gpu", "80GiB", *choices],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(sum(row["bytes"] for row in json.loads(answered.stdout)["buckets"] if row["name"] == name))


def expect(what: str, ours: float, theirs: float, share: float) -> None:
    if abs(ours - theirs) > share * theirs:
        sys.exit(f"{what}: estimated {ours:.0f} bytes, PyTorch holds {theirs:.0f}")


def check_layer(spillway: str) -> None:
    x = torch.zeros(BATCH, TOKENS, HIDDEN, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    ours = sum(bucket(spillway, name) for name in ("norms and residuals", "attention", "feed-forward"))
    # PyTorch keeps an fp32 number for each token and norm as well.
    expect("a layer's activations", ours, saved_bytes(Layer(), x), 0.001)


def check_loss(spillway: str) -> None:
    tokens = BATCH * TOKENS
    logits = torch.zeros(tokens, VOCABULARY, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.zeros(tokens, device=DEVICE, dtype=torch.long)
    theirs = peak_of(lambda: torch.autograd.backward(functional.cross_entropy(logits.float(), labels)))
    expect("the loss", bucket(spillway, "logits and loss"), theirs, 0.001)


def check_softmax() -> None:
    """Three fp32 copies in its backward pass, which estimator/buckets/activations.h takes from there."""
    scores = torch.zeros(1 << 14, 1 << 10, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    probabilities = torch.softmax(scores.float(), -1).bfloat16()
    gradient = torch.zeros_like(probabilities)
    theirs = peak_of(lambda: torch.autograd.backward(probabilities, gradient))
    expect("gradients of scores", 3 * 4 * scores.numel(), theirs, 0.001)


def check_step() -> None:
    for foreach, bytes_each in ((False, 0), (True, 4)):
        parameters = [nn.Parameter(torch.zeros(1 << 20, device=DEVICE)) for _ in range(8)]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer = torch.optim.AdamW(parameters, foreach=foreach, fused=not foreach)
        optimizer.step()
        theirs = peak_of(optimizer.step)
        if abs(theirs - bytes_each * (8 << 20)) > 4096:
            sys.exit(f"foreach={foreach}: estimated {bytes_each} bytes a parameter, PyTorch makes {theirs} bytes")


def main() -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)  # it is not simulated
    check_layer(sys.argv[1])
    check_loss(sys.argv[1])
    check_softmax()
    check_step()
    print("ok")


if __name__ == "__main__":
    main()
