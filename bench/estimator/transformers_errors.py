#!/usr/bin/env python3
"""`spillway estimate` against rows of transformers_peaks.py: a table of errors by type, and the worst rows.

python transformers_errors.py rows.jsonl [--worst 10]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import more_types
import vision_language

COMMAND = Path(__file__).resolve().parents[2] / "build" / "release" / "bin" / "spillway"
OPTIMIZERS = {
    **{"adamw": ("adamw", "fused"), "adamw_foreach": ("adamw", "foreach")},
    **{"sgd": ("sgd", "fused"), "sgd_momentum": ("sgd-momentum", "fused")},
    **{"galore": ("galore", "for-loop"), "apollo": ("apollo", "for-loop")},
    **{"badam": ("badam", "for-loop"), "lisa": ("adamw", "fused")},
}
Row = dict[str, Any]


def settings(row: Row) -> list[str]:
    optimizer, step = OPTIMIZERS[row["optimizer"]]
    keys = {
        **{"train.micro_batch": row["batch"], "train.precision": row["precision"], "train.optimizer": optimizer},
        **{"train.optimizer_step": step, "train.recompute": "full" if row["recompute"] else "none"},
        **{"train.attention": "flash" if row["attention"] == "sdpa" else "materialised"},
        **{"train.gradient_accumulation": row["accumulation"]},
    }
    if row["config"]["model_type"] not in ("vit", *more_types.IMAGES):
        keys["train.sequence"] = row["sequence"]
    for key in ("optimizer_rank", "layers_at_a_time"):
        if key in row:
            keys[f"train.{key}"] = row[key]
    if "method" in row:
        keys |= {"train.method": row["method"], "train.prompt": row["sequence"] // 4}
    if "rollout_batch" in row:
        keys["rollout.batch"] = row["rollout_batch"]
    if "images" in row:
        keys |= {"train.images": row["images"], "train.freeze_vision": str(row["freeze_vision"]).lower()}
    if "grid" in row:
        keys["train.image_pixels"] = vision_language.pixels_of(row)
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def estimated(row: Row, command: Path, folder: Path, more: list[str]) -> Row:
    config = {**row["config"], "architectures": [row["class"]], "transformers_version": row["transformers"]}
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    words = [str(command), "estimate", str(file), "--json", *settings(row), *more]
    if "adapter" in row:
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **row["adapter"]}))
        words += ["--adapter", str(folder / "adapter_config.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode == 1:
        raise ValueError(done.stderr)
    answer: Row = json.loads(done.stdout)
    return answer


def share(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def line(name: str, errors: list[float]) -> str:
    sizes = [abs(error) for error in errors]
    return (
        f"| {name} | {len(errors)} | {median(sizes):.2f} | {share(sizes, 0.95):.2f} | {max(sizes):.2f} "
        f"| {median(errors):+.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--worst", type=int, default=10)
    parser.add_argument("--command", type=Path, default=COMMAND, help="spillway, of the build unless given")
    parser.add_argument("--set", action="append", default=[], help="another setting for all rows")
    options = parser.parse_args()
    errors: dict[str, list[float]] = defaultdict(list)
    found = []
    more = [word for each in options.set for word in ("--set", each)]
    with tempfile.TemporaryDirectory() as name:
        for text in (text for file in options.rows for text in file.read_text().splitlines()):
            row = json.loads(text)
            try:
                answer = estimated(row, options.command, Path(name), more)
            except ValueError as error:
                print(f"refused: {error}")
                continue
            peak = answer["peak_bytes"]
            steady = answer["steady_bytes"]
            off = 100 * (peak / row["peak"] - 1)
            errors[row["config"]["model_type"]].append(off)
            found.append((abs(off), off, 100 * (steady / row["steady"] - 1), peak, row))
    print("| type | rows | median % | 95th % | worst % | signed median % |\n|---|---:|---:|---:|---:|---:|")
    for kind in sorted(errors):
        print(line(kind, errors[kind]))
    print(line("all", [off for kind in errors.values() for off in kind]))
    for _, off, steady, peak, row in sorted(found, key=lambda each: -each[0])[: options.worst]:
        print(f"{off:+.2f} % (steady {steady:+.2f} %) {peak / 2**20:.1f} MiB for {row['peak'] / 2**20:.1f}: {row}")


if __name__ == "__main__":
    main()
