#!/usr/bin/env python3
"""What each allocator reserves over the peak of what tensors hold: the rows behind `estimator/reserved.cpp`.

    bench/estimator/reserved.py rows TRACE... > bench/estimator/reserved.jsonl
    bench/estimator/reserved.py shares

The first replays recorded training steps through each allocator (simulated) and adds what was measured on an H100
(bench/pytorch/*_h100.jsonl); `reserved_programs.py` says how traces of transformers' models are recorded. A trace
whose name KINDS does not have is refused. Of PyTorch's allocators it is what they reserve without a limit; of Spillway
the least with which it never waits, on the H100 what it reserved. The second prints the least, the median and the most
of each kind.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROWS = HERE / "reserved.jsonl"
COMMAND = HERE.parents[1] / "build/release/bin/spillway"
# The estimator's words, and replay's.
ALLOCATORS = {"pytorch": "native", "expandable": "expandable", "spillway": "spillway"}
KINDS = {
    **{"lm_2p7b_ctx128_train_step": "plain", "lm_2p7b_ctx512_train_step": "plain", "tinyllama_qlora_finetune": "plain"},
    **{"llama_1b_fixed": "plain", "llama-fixed": "plain", "llama-varied": "plain", "llama-3b-fixed": "plain"},
    **{"llama-3b-varied": "plain", "gpt2-xl-autocast": "plain"},
    **{"llama-3b-checkpointed": "recomputed", "llama-3b-checkpointed-varied": "recomputed"},
    **{"qwen-7b-checkpointed": "recomputed", "qwen-7b-autocast-checkpointed": "recomputed"},
    **{"moe_random_routing": "routed", "gather_free_prefetch": "sharded", "fsdp2-8b": "sharded"},
}
# These are of bench/pytorch/transformers_memory.py; a prefill is no training step.
MEASURED_KINDS = {
    **{"llama_fp32": "plain", "llama_bf16": "plain", "llama_bf16_eager": "plain", "llama_bf16_fused": "plain"},
    **{"llama_bf16_sgd": "plain", "qwen3_bf16": "plain", "gpt_neox_bf16": "plain", "gemma2_bf16": "plain"},
    **{"gpt2_autocast": "plain", "bert_autocast": "plain", "mixtral_bf16": "routed"},
    **{"llama_checkpointed_autocast": "recomputed", "llama_checkpointed_long": "recomputed"},
}

Row = dict[str, Any]


def replayed(command: Path, trace: Path, allocator: str) -> Row:
    options = ["--allocator", allocator, "--json", "--jobs", "1"]
    if allocator == "spillway":
        options += ["--capacity", "min"]
    done = subprocess.run([command, "replay", trace, *options], check=True, capture_output=True, text=True)
    (answer,) = json.loads(done.stdout)
    return dict(answer)


def trace_row(command: Path, trace: Path) -> Row:
    name = trace.name.split(".")[0]
    row: Row = {"run": name, "kind": KINDS[name], "device": "simulated", "by": "spillway replay"}
    for word, allocator in ALLOCATORS.items():
        answer = replayed(command, trace, allocator)
        row["peak_bytes"] = answer["peak_live_bytes"]
        least = answer.get("stall_free_capacity_ratio")
        row[word] = round(least or answer["peak_reserved_bytes"] / answer["peak_live_bytes"], 4)
    return row


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def measured_rows() -> Iterator[Row]:
    folder = HERE.parent / "pytorch"
    for line in lines(folder / "transformers_memory_h100.jsonl"):
        if line["run"] not in MEASURED_KINDS:
            continue
        peak, reserved = (max(step[key] for step in line["steps"]) for key in ("peak", "reserved"))
        yield {
            **{"run": line["run"], "kind": MEASURED_KINDS[line["run"]], "device": line["device"].split(",")[0]},
            **{"by": "transformers_memory.py", "peak_bytes": peak, "pytorch": round(reserved / peak, 4)},
        }
    programs = [line for line in lines(folder / "real_programs_h100.jsonl") if "peak_reserved_bytes" in line]
    trainer = [line for line in programs if line["program"] == "train_lengths"]  # the others are no language models
    row: Row = {"run": "train_lengths", "kind": "plain", "device": trainer[0]["device"], "by": "real_programs.py"}
    for word, allocator in ALLOCATORS.items():
        (line,) = (each for each in trainer if each["allocator"] == allocator)
        row["peak_bytes"] = line["peak_allocated_bytes"]
        row[word] = round(line["peak_reserved_bytes"] / line["peak_allocated_bytes"], 4)
    yield row


def print_rows(command: Path, traces: list[Path]) -> None:
    if unknown := [trace.name for trace in traces if trace.name.split(".")[0] not in KINDS]:
        sys.exit(f"reserved.py: {unknown[0]}: of no kind; allowed: {', '.join(KINDS)}")
    for trace in traces:
        print(json.dumps(trace_row(command, trace)), flush=True)
    for row in measured_rows():
        print(json.dumps(row))


def print_shares() -> None:
    rows = lines(ROWS)
    for word in ALLOCATORS:
        for kind in ("plain", "recomputed", "routed", "sharded"):
            shares = [row[word] for row in rows if row["kind"] == kind and word in row]
            print(word, kind, len(shares), min(shares), round(statistics.median(shares), 4), max(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command_name", required=True)
    rows = commands.add_parser("rows", help="replay traces, and print the rows")
    rows.add_argument("traces", type=Path, nargs="+")
    rows.add_argument("--command", type=Path, default=COMMAND, help="spillway, of the build unless given")
    commands.add_parser("shares", help="print the shares of reserved.jsonl")
    options = parser.parse_args()
    if options.command_name == "rows":
        print_rows(options.command, options.traces)
    else:
        print_shares()


if __name__ == "__main__":
    main()
