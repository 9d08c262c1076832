"""The kinds of traces that make_traces.py knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draws import Draws
from recorder import Recorder

from workloads import churn, drifting, moe, serving, sharded, turns, varlen


@dataclass(frozen=True)
class Kind:
    """record() sets up what is live before the first event, then goes through so many iterations."""

    name: str
    record: Callable[[Recorder, Draws, int], None]
    iterations: int
    unit: str
    summary: str


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "transformer_varlen", varlen.record, 16, "steps",
            "training on sequences of random length, activations computed again",
        ),
        Kind("moe_random", moe.record, 16, "steps", "mixture of experts, random loads of each expert"),
        Kind("kv_serving", serving.record, 500, "tokens", "serving: key-value caches that grow and leave at random"),
        Kind(
            "sharded_two_streams", sharded.record, 10, "steps",
            "sharded training, gathers and reductions on streams of their own",
        ),
        Kind("generation_and_training", turns.record, 5, "turns", "generation and training in one process, in turns"),
        Kind(
            "drifting_sizes", drifting.record, 80, "thousand allocations",
            "mean size of a block drifts between 1 and 160 MiB",
        ),
        Kind("small_churn", churn.record, 120, "thousand allocations", "small blocks, 512 B to 1 MiB, mixed lifetimes"),
    )
}  # fmt: skip
