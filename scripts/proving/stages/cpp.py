"""The C++ tests for GPUs. A program runs all of its cases; those that fail so, or are lost with it, then one by one."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..listed import Test, command_of, environment_of, gpu_tests
from ..running import SHORTEST_SECONDS, Stage, execute

PROGRAM_SECONDS, CASE_SECONDS = 120, 60
MOST_ALONE = 40


class Program:
    def __init__(self, stage: Stage, name: str, cases: list[Test]) -> None:
        self.stage = stage
        self.name = name
        self.cases = [case.case for case in cases]
        self.path = command_of(cases[0], stage.machine)[0]
        self.environment = environment_of(cases[0], stage.machine)

    def outcomes(self, cases: list[str], log: Path, seconds: float) -> dict[str, str]:
        """By case: "passed", "skipped", or why not. What is not in it did not end, or failed and was lost."""
        report = log.with_name(f"{log.name}.json")
        report.unlink(missing_ok=True)
        command = [self.path, f"--gtest_filter={':'.join(cases)}", f"--gtest_output=json:{report}"]
        done = execute(command, self.environment, min(seconds, self.stage.left()), log)
        if not report.exists() or not report.stat().st_size:
            ended = re.findall(r"^\[ +(OK|SKIPPED) \] (\S+) \(", done.out, re.MULTILINE)
            return {case: "passed" if sign == "OK" else "skipped" for sign, case in ended}
        found = {}
        for suite in json.loads(report.read_text())["testsuites"]:
            for case in suite["testsuite"]:
                found[f"{suite['name']}.{case['name']}"] = outcome(case)
        report.unlink()
        return found

    def run(self) -> dict[str, Any]:
        log = self.stage.log(self.name)
        begin = self.stage.left()
        found = self.outcomes(self.cases, log, PROGRAM_SECONDS)
        again = [case for case in self.cases if found.get(case) not in ("passed", "skipped")]
        for case in again[:MOST_ALONE]:
            if self.stage.left() < SHORTEST_SECONDS:
                break
            alone = self.outcomes([case], self.stage.log(f"{self.name}.{case}"), CASE_SECONDS)
            found[case] = alone.get(case, "it ended before its result")
        bad = {case: found.get(case, "not run") for case in self.cases if found.get(case) not in ("passed", "skipped")}
        return {
            "code": int(bool(bad)),
            "seconds": round(begin - self.stage.left(), 1),
            "cases": len(self.cases),
            "skipped": [case for case in self.cases if found.get(case) == "skipped"],
            "only_alone": [case for case in again if case not in bad],
            "failed": bad,
            "tail": ", ".join(bad),
        }


def outcome(case: dict[str, Any]) -> str:
    if failures := case.get("failures"):
        return str(failures[0]["failure"])[:700]
    return "skipped" if case.get("result") == "SKIPPED" else "passed"


def by_program(tests: list[Test]) -> dict[str, list[Test]]:
    found: dict[str, list[Test]] = {}
    for test in tests:
        if not test.is_python:
            found.setdefault(test.program, []).append(test)
    return found


def run(stage: Stage) -> None:
    def of(name: str, cases: list[Test]) -> None:
        if stage.once(name, Program(stage, name, cases).run):
            tell(stage)

    jobs: dict[bool, list[Callable[[], None]]] = {False: [], True: []}
    programs = by_program(gpu_tests(stage.machine))
    for name, cases in sorted(programs.items(), key=lambda each: -len(each[1])):  # what may take long begins first
        jobs[cases[0].whole_gpu].append(partial(of, name, cases))
    stage.side_by_side(jobs[False], jobs[True])


def tell(stage: Stage) -> None:
    """The sums so far, and each case's outcome."""
    tests: dict[str, str] = {}
    listed = by_program(gpu_tests(stage.machine))
    with stage.lock:
        steps = dict(stage.kept["steps"])
    for name, step in steps.items():
        for case in listed.get(name, []):
            tests[case.case] = "skipped" if case.case in step["skipped"] else step["failed"].get(case.case, "passed")
    counts = Counter(each if each in ("passed", "skipped") else "failed" for each in tests.values())
    stage.found(passed=counts["passed"], skipped=counts["skipped"], failed=counts["failed"], tests=tests)
