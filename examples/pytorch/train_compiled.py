"""A small language model through torch.compile.

spillway run -- python train_compiled.py --backend inductor
spillway dryrun --gpu-memory 8GiB -- python train_compiled.py

inductor generates kernels and needs a compiler for the device. aot_eager_decomp_partition does all that comes before
(one graph forward and one backward, with what is kept between them chosen to be small) and runs PyTorch's own kernels.
"""

from __future__ import annotations

import torch
from language_model import LanguageModel, parser, print_memory, random_text


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--backend", default="aot_eager_decomp_partition")
    options = arguments.parse_args()
    model = LanguageModel(options.width, options.layers).cuda()
    compiled = torch.compile(model, backend=options.backend)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(options.steps):
        loss = compiled(random_text(options).cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print_memory(step)


if __name__ == "__main__":
    main()
