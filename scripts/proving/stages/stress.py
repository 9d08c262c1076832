"""What could corrupt or stall: tensors with a value of their own at a limit, and much memory taken and given back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..running import Stage

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "stress.py"
# By the options that are to be set where the first fails.
CONFIGURATIONS = {"default": "", "share_edges_off": "share_edges:off", "backend_malloc": "backend:malloc"}
SECONDS, SIMULATED_SECONDS = 35, 2


def values(stage: Stage) -> None:
    seconds = str(SIMULATED_SECONDS if stage.machine.simulated else SECONDS)
    limit = str((1 if stage.machine.simulated else 12) << 30)
    wrong = {}

    def of(name: str, configuration: str) -> None:
        words = ("spillway", "values", "--seconds", seconds, "--limit", limit)
        step = stage.python(f"values.{name}", PROGRAM, *words, seconds=80, SPILLWAY_CONF=configuration)
        if step.get("code") == 0:
            wrong[name] = step["json"]["wrong_words"]

    stage.side_by_side(partial(of, *each) for each in CONFIGURATIONS.items())
    stage.found(wrong_words=wrong)


def give_back(stage: Stage) -> None:
    gib = "1" if stage.machine.simulated else "48"
    found = {}
    for name in ("native", "spillway"):
        step = stage.python(f"give_back.{name}", PROGRAM, name, "give_back", "--gib", gib, seconds=60)
        if step.get("code") == 0:
            found[name] = step["json"]
    stage.found(
        first_touch_s={name: each["first_s"] for name, each in found.items()},
        empty_cache_s={name: each["empty_cache_s"] for name, each in found.items()},
    )


def run(stage: Stage) -> None:
    stage.found(says_nothing=["wrong_words", "empty_cache_s"] if stage.machine.simulated else [])
    give_back(stage)
    values(stage)
