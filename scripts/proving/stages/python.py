"""The Python tests for GPUs, each a program of its own."""

from __future__ import annotations

import re
from functools import partial

from ..listed import PYTHON_SIGN, ROOT_SIGN, Test, command_of, environment_of, gpu_tests, nvcc
from ..running import Stage

SECONDS = 180
FIRST = "python.extension"  # what it compiles, the others would each wait for
LAST = ("python.install", "python.launch")  # the longest, and of the device they say least
# The preload stage runs these.
OF_PRELOAD = ("preload.", "abi.nvcc")
NOT_ON_THE_SIMULATED_DEVICE = ("preload.gpu",)


def python_tests(stage: Stage) -> list[Test]:
    tests = [test for test in gpu_tests(stage.machine) if test.is_python]
    if preload := next((test for test in tests if test.name == "preload.torch"), None):
        command = [PYTHON_SIGN, f"{ROOT_SIGN}/tests/preload/gpu_test.py"]  # a list that was made without a GPU lacks it
        tests.append(Test("preload.gpu", command, preload.environment))
    if not nvcc():
        tests = [test for test in tests if test.name != "abi.nvcc"]
    if stage.machine.simulated:
        tests = [test for test in tests if test.name not in NOT_ON_THE_SIMULATED_DEVICE]
    return sorted(tests, key=lambda test: (test.name != FIRST, test.name in LAST))


def run_tests(stage: Stage, tests: list[Test]) -> None:
    outcomes: dict[str, str] = dict(stage.kept["found"].get("tests", {}))

    def of(test: Test) -> None:
        step = stage.run(test.name, command_of(test, stage.machine), environment_of(test, stage.machine), SECONDS)
        with stage.lock:
            if step:
                outcomes[test.name] = "passed" if step["code"] == 0 else bad_cases(step.get("tail", ""))
            failed = sum(outcome != "passed" for outcome in outcomes.values())
            stage.found(passed=len(outcomes) - failed, failed=failed, tests=dict(outcomes))

    if tests:
        of(tests[0])  # what it compiles, the others find
    beside, alone = ([test for test in tests[1:] if test.whole_gpu is whole] for whole in (False, True))
    stage.side_by_side([partial(of, test) for test in beside], [partial(of, test) for test in alone])


def bad_cases(said: str) -> str:
    """The names of what failed, as unittest prints them."""
    return (
        ", ".join(re.findall(r"^(?:FAIL|ERROR): (\S+)", said, re.MULTILINE)) or said[-200:] or "it did not end in time"
    )


def run(stage: Stage) -> None:
    run_tests(stage, [test for test in python_tests(stage) if not test.name.startswith(OF_PRELOAD)])
