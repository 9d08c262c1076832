"""How fast memory goes away and comes back: regions beside plain copies, and a step whose activations are away."""

from __future__ import annotations

from ..running import Stage
from .pytorch import train

OF_TIME = ("evict_share_of_copy", "restore_share_of_copy", "activations_step_times")


def tiers(stage: Stage) -> None:
    command = stage.machine.programs / "spillway"
    environment = stage.machine.for_program()
    stage.run("tiers", [command, "tiers", "--json"], environment, 60)
    size = "64MiB" if stage.machine.simulated else "4GiB"
    step = stage.run("bench_tiers", [command, "bench-tiers", "--json", "--bytes", size], environment, 100)
    rates = step.get("json", {}).get("device", {})
    stage.found(rates=step.get("json", {}))
    for verb, copy in {"evict": "out", "restore": "in"}.items():
        moved, copied = rates.get(f"{verb}_host_bytes_per_s"), rates.get(f"copy_{copy}_bytes_per_s")
        if moved and copied:
            stage.found(**{f"{verb}_share_of_copy": round(moved / copied, 3)})


def activations(stage: Stage) -> None:
    times = {}
    for way in ("kept", "spillway", "save_on_cpu"):
        allocator = "spillway" if way == "spillway" else "native"
        if step := train(stage, f"activations.{way}", allocator, "--activations", way):
            times[way] = step["median_step_ms"]
    stage.found(activations_median_step_ms=times)
    if times.get("kept") and "spillway" in times:
        stage.found(activations_step_times=round(times["spillway"] / times["kept"], 4))


def run(stage: Stage) -> None:
    stage.found(says_nothing=list(OF_TIME) if stage.machine.simulated else [])
    tiers(stage)
    activations(stage)
