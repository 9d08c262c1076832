"""Programs that know nothing of Spillway, under its preload library: PyTorch's bits and speed, and the tests of it."""

from __future__ import annotations

from ..running import Stage
from .python import OF_PRELOAD, python_tests, run_tests
from .pytorch import same, silent, train


def run(stage: Stage) -> None:
    plain = train(stage, "exact.plain", "native", "--exact")
    under = train(stage, "exact.preload", "native", "--exact", preload=True)
    stage.found(
        same_losses=same(plain, under, "losses"), same_weights=same(plain, under, "weights"), says_nothing=silent(stage)
    )
    times = [train(stage, f"speed.{name}", "native", preload=name == "preload") for name in ("plain", "preload")]
    if all(times):
        plain_ms, under_ms = (each["median_step_ms"] for each in times)
        stage.found(step_times_native=round(under_ms / plain_ms, 4))
    run_tests(stage, [test for test in python_tests(stage) if test.name.startswith(OF_PRELOAD)])
