"""What people use today to foresee a run's memory, beside `spillway estimate`, on recorded Megatron-LM runs.

Prints a Markdown table of errors against the measured peak of twenty runs: all eligible recordings, one for each
case, sorted by their peak, evenly spaced. The rivals are the published packages of requirements.txt and one file of
Megatron-LM (megatron/training/theoretical_memory_usage.py); one that cannot be imported is
left out and named on stderr.

    python bench/estimator/side_by_side.py --runs RUNS.jsonl --megatron theoretical_memory_usage.py
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GPT2_VOCABULARY = 50257
MIB = 1 << 20


@dataclass
class Recorded:
    """One recording with Spillway's answer."""

    case: str
    gpus: int
    arguments: dict[str, str]
    measured: float
    parameters: int  # of the whole model
    spillway: float

    def number(self, key: str, otherwise: int) -> int:
        return int(self.arguments.get(key, otherwise))

    @property
    def tensor(self) -> int:
        return self.number("tensor-model-parallel-size", 1)

    @property
    def pipeline(self) -> int:
        return self.number("pipeline-model-parallel-size", 1)

    @property
    def data(self) -> int:
        return self.gpus // (self.tensor * self.pipeline * self.number("context-parallel-size", 1))

    @property
    def share(self) -> int:
        """A rank's share of the parameters, which a user has to know for the rivals that know no parallelism."""
        return self.parameters // (self.tensor * self.pipeline)


Estimator = Callable[[Recorded], float]


def accelerate_rival() -> Estimator:
    """`accelerate estimate-memory`: the column "Training using Adam" is the largest of four parts."""
    from accelerate.commands.estimate import estimate_training_usage  # type: ignore[import-untyped]

    def peak(run: Recorded) -> float:
        return float(max(estimate_training_usage(4 * run.share, "float16").values()))

    return peak


def deepspeed_rival() -> Estimator:
    """DeepSpeed's estimator of ZeRO-2, the nearest it has to Megatron-LM's optimizers."""
    from deepspeed.runtime.zero.stage_1_and_2 import (  # type: ignore[import-not-found]
        estimate_zero2_model_states_mem_needs,
    )

    def peak(run: Recorded) -> float:
        sharded = run.data if "use-distributed-optimizer" in run.arguments else 1
        _, device = estimate_zero2_model_states_mem_needs(run.share, sharded, 1, cpu_offload=False)
        return float(device)

    return peak


def theoretical_module(path: Path) -> types.ModuleType:
    """Megatron-LM's file without the rest of it, which needs a GPU; only what it prints with is replaced."""
    package = types.ModuleType("theoretical")
    package.__path__ = []
    utils = types.ModuleType("theoretical.utils")
    utils.is_hybrid_model = lambda args: False  # type: ignore[attr-defined]
    utils.print_rank_0 = print  # type: ignore[attr-defined]
    sys.modules["theoretical"] = package
    sys.modules["theoretical.utils"] = utils
    spec = importlib.util.spec_from_file_location("theoretical.memory", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def megatron_arguments(run: Recorded) -> types.SimpleNamespace:
    """Its arguments with Megatron-LM's defaults, as far as the file reads them."""
    given = run.arguments
    hidden, heads = run.number("hidden-size", 1), run.number("num-attention-heads", 1)
    layers = run.number("num-layers", 1)
    experts = run.number("num-experts", 0) or None
    vocabulary = run.number("vocab-size", GPT2_VOCABULARY)
    multiple = run.number("make-vocab-size-divisible-by", 128) * run.tensor
    gated = "swiglu" in given
    ffn = run.number("ffn-hidden-size", int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden)
    each = run.number("num-layers-per-virtual-pipeline-stage", 0)
    return types.SimpleNamespace(
        hidden_size=hidden,
        num_attention_heads=heads,
        kv_channels=run.number("kv-channels", hidden // heads),
        group_query_attention="group-query-attention" in given,
        num_query_groups=run.number("num-query-groups", 1),
        num_layers=layers,
        ffn_hidden_size=ffn,
        swiglu=gated,
        num_experts=experts,
        moe_layer_freq=1,
        moe_ffn_hidden_size=run.number("moe-ffn-hidden-size", ffn),
        moe_shared_expert_intermediate_size=run.number("moe-shared-expert-intermediate-size", 0) or None,
        moe_shared_expert_gate=False,
        moe_router_topk=run.number("moe-router-topk", 2),
        moe_latent_size=None,
        mtp_num_layers=None,
        add_bias_linear="disable-bias-linear" not in given,
        normalization=given.get("normalization", "LayerNorm"),
        multi_latent_attention=False,
        padded_vocab_size=(vocabulary + multiple - 1) // multiple * multiple,
        untie_embeddings_and_output_weights="untie-embeddings-and-output-weights" in given,
        tensor_model_parallel_size=run.tensor,
        pipeline_model_parallel_size=run.pipeline,
        context_parallel_size=run.number("context-parallel-size", 1),
        expert_tensor_parallel_size=run.number("expert-tensor-parallel-size", run.tensor),
        expert_model_parallel_size=run.number("expert-model-parallel-size", 1),
        virtual_pipeline_model_parallel_size=layers // (each * run.pipeline) if each else None,
        data_parallel_size=run.data,
        world_size=run.gpus,
        use_distributed_optimizer="use-distributed-optimizer" in given,
        seq_length=run.number("seq-length", 1024),
        micro_batch_size=run.number("micro-batch-size", 1),
        sequence_parallel="sequence-parallel" in given,
        recompute_granularity=given.get("recompute-granularity"),
    )


def megatron_rival(path: Path) -> Estimator:
    """Megatron-LM's own report, of its first pipeline stage."""
    module = theoretical_module(path)

    def peak(run: Recorded) -> float:
        args = megatron_arguments(run)
        microbatches = run.number("global-batch-size", 1) // (args.micro_batch_size * run.data)
        with contextlib.redirect_stdout(io.StringIO()):
            report = module.report_theoretical_memory(args, num_microbatches=microbatches)
        return float(report[2]) * MIB

    return peak


def eligible(line: dict[str, Any]) -> bool:
    """A language model whose vocabulary is known without its tokenizer's files, dense or with experts everywhere."""
    arguments = line["args"]
    known = "vocab-size" in arguments or "tokenizer-type" not in arguments
    plain = not {"multi-latent-attention", "mtp-num-layers", "moe-layer-freq"} & set(arguments)
    return line["case"].split("/")[0] in ("gpt", "moe") and known and plain


def read_runs(path: Path, spillway: Path, count: int) -> list[Recorded]:
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    answered = subprocess.run([spillway, "estimate", "--jsonl", path], capture_output=True, text=True, check=True)
    runs: dict[str, Recorded] = {}
    for line, text in zip(lines, answered.stdout.splitlines(), strict=True):
        answer = json.loads(text)
        if "refused" in answer or not eligible(line) or line["case"] in runs:
            continue
        arguments = {key: str(value) for key, value in line["args"].items()}
        runs[line["case"]] = Recorded(
            line["case"],
            line.get("gpus", 8),
            arguments,
            float(line["peak_bytes"]),
            answer["parameters"],
            float(answer["peak_bytes"]),
        )
    ordered = sorted(runs.values(), key=lambda run: run.measured)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def rivals(megatron: Path | None) -> dict[str, Estimator]:
    makers: dict[str, Callable[[], Estimator]] = {
        "accelerate": accelerate_rival,
        "DeepSpeed, ZeRO-2": deepspeed_rival,
    }
    if megatron is not None:
        makers["Megatron-LM, its report"] = lambda: megatron_rival(megatron)
    out: dict[str, Estimator] = {}
    for name, maker in makers.items():
        try:
            out[name] = maker()
        except ImportError as error:
            print(f"side_by_side: {name}: left out: {error}", file=sys.stderr)
    return out


def percent(value: float, measured: float) -> str:
    return f"{100 * (value / measured - 1):+.1f}"


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def table(runs: list[Recorded], estimators: dict[str, Estimator]) -> str:
    names = ["Spillway", *estimators]
    out = "| run | measured peak, MiB |" + "".join(f" {name} |" for name in names) + "\n"
    out += "|---|---:|" + "---:|" * len(names) + "\n"
    errors: dict[str, list[float]] = {name: [] for name in names}
    for run in runs:
        values = {"Spillway": run.spillway, **{name: peak(run) for name, peak in estimators.items()}}
        for name, value in values.items():
            errors[name].append(abs(100 * (value / run.measured - 1)))
        cells = "".join(f" {percent(values[name], run.measured)} |" for name in names)
        out += f"| {run.case} | {run.measured / MIB:.0f} |{cells}\n"
    out += "| median of absolute errors | |" + "".join(f" {median(errors[name]):.1f} |" for name in names) + "\n"
    out += "| worst | |" + "".join(f" {max(errors[name]):.1f} |" for name in names) + "\n"
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="recorded runs, one JSON object a line")
    parser.add_argument("--spillway", type=Path, default=ROOT / "build" / "release" / "bin" / "spillway")
    parser.add_argument("--megatron", type=Path, help="Megatron-LM's theoretical_memory_usage.py")
    parser.add_argument("--count", type=int, default=20)
    choices = parser.parse_args()
    for path in (choices.runs, choices.spillway, choices.megatron):
        if path is not None and not path.is_file():
            sys.exit(f"side_by_side: {path}: not there")
    runs = read_runs(choices.runs, choices.spillway, choices.count)
    if not runs:
        sys.exit(f"side_by_side: {choices.runs}: no run is eligible")
    print(table(runs, rivals(choices.megatron)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
