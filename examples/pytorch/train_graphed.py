"""A small language model by CUDA graphs.

spillway run -- python train_graphed.py --capture step
spillway dryrun --gpu-memory 8GiB -- python train_graphed.py --capture step

step: one graph of forward, backward and optimizer. layers: torch.cuda.make_graphed_callables makes two graphs of every
layer, and the rest runs as ever.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from language_model import LanguageModel, parser, print_memory, random_text

Step = Callable[[torch.Tensor], None]


def train_layers(model: LanguageModel, options: argparse.Namespace) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())
    states = torch.zeros(options.batch, options.length, options.width, device="cuda", requires_grad=True)
    samples = tuple((states,) for _ in model.layers)
    torch.cuda.make_graphed_callables(tuple(model.layers), samples)

    def step(text: torch.Tensor) -> None:
        model(text).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def train_step(model: LanguageModel, options: argparse.Namespace) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    batch = random_text(options).cuda()

    def eager() -> None:
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()

    # What is made on first use, as the optimizer's state, must not be made in the graph.
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        eager()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()

    def step(text: torch.Tensor) -> None:
        batch.copy_(text, non_blocking=True)
        graph.replay()

    return step


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--capture", choices=["step", "layers"], default="step")
    options = arguments.parse_args()
    model = LanguageModel(options.width, options.layers).cuda()
    step = train_step(model, options) if options.capture == "step" else train_layers(model, options)
    for number in range(options.steps):
        step(random_text(options).cuda(non_blocking=True))
        print_memory(number)


if __name__ == "__main__":
    main()
