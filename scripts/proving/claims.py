"""What the design claims of hardware, and which of it a run bore out: claims.json is the one list of both.

A claim has the fields of the report that decide it and a rule, of which every field must hold:
    is V, not V           equal to V, or anything else
    at_most N, at_least N
    same_as FIELD         equal to another field
    share_of FIELD        most N, least N: times that field
    any                   it was answered: a figure, or one of several answers that are all right
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("claims.json")
HELD, FAILED, SILENT, OPEN = "held", "NOT", "says nothing here", "not run"


@dataclass(frozen=True)
class Row:
    claim: Mapping[str, Any]
    outcome: str
    found: str


def all_claims() -> dict[str, list[dict[str, Any]]]:
    """{"claims": decided by fields, "tests": decided by tests}."""
    loaded: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text())
    return loaded


def report_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that claims name: those of the probe's report, and what each stage found, below its name."""
    found = {name: stage["found"] for name, stage in results["stages"].items()}
    return {**found.get("probe", {}), **found}


def look_up(report: Mapping[str, Any], field: str) -> Any:
    """None where the run has no such field."""
    value: Any = report
    for name in field.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def is_silent(report: Mapping[str, Any], field: str) -> bool:
    """A field that its section marks: it means nothing on the device of this run."""
    section, _, rest = field.partition(".")
    silent = look_up(report, f"{section}.says_nothing") or []
    return rest.split(".")[0] in silent


def holds(rule: Mapping[str, Any], value: Any, report: Mapping[str, Any]) -> bool | None:
    """None: what the rule compares with is not there."""
    if "is" in rule:
        return bool(value == rule["is"])
    if "not" in rule:
        return bool(value != rule["not"])
    if "any" in rule:
        return True
    if "same_as" in rule:
        other = look_up(report, rule["same_as"])
        return None if other is None else bool(value == other)
    unit = look_up(report, rule["share_of"]) if "share_of" in rule else 1
    if not isinstance(unit, int | float):
        return None
    most = rule.get("most", rule.get("at_most", float("inf"))) * unit
    least = rule.get("least", rule.get("at_least", 0)) * unit
    return bool(least <= value <= most)


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def judge(claim: Mapping[str, Any], report: Mapping[str, Any]) -> Row:
    values = {field: look_up(report, field) for field in claim["fields"]}
    answered = {field: value for field, value in values.items() if value is not None}
    found = ", ".join(shown(value) for value in answered.values())
    if any(is_silent(report, field) for field in values):
        return Row(claim, SILENT, found)
    crashed = [field for field in values if look_up(report, field.rsplit(".", 1)[0] + ".crashed")]
    if crashed:
        return Row(claim, FAILED, f"{crashed[0].rsplit('.', 1)[0]}: the process was ended by a signal")
    verdicts = [holds(claim["rule"], value, report) for value in answered.values()]
    if False in verdicts:
        return Row(claim, FAILED, found)
    if len(answered) < len(values) or None in verdicts:
        return Row(claim, OPEN, found)
    return Row(claim, HELD, found)


def outcomes_of_tests(results: Mapping[str, Any]) -> dict[str, str]:
    """By name, as ctest calls them: "passed", "skipped", or anything else that is neither."""
    found: dict[str, str] = {}
    for stage in ("cpp", "python", "preload"):
        found.update(look_up(report_of(results), f"{stage}.tests") or {})
    return found


def judge_test(claim: Mapping[str, Any], outcomes: Mapping[str, str]) -> Row:
    named = re.findall(r"`([^`]+)`", claim["test"])
    met = [outcome for name, outcome in outcomes.items() if any(fnmatch.fnmatch(name, each) for each in named)]
    ran = [outcome for outcome in met if outcome != "skipped"]
    if not ran:
        return Row(claim, OPEN, "skipped" if met else "")
    failed = sum(outcome != "passed" for outcome in ran)
    return Row(claim, FAILED if failed else HELD, f"{len(ran) - failed} of {len(ran)} passed")


def judge_all(results: Mapping[str, Any]) -> Iterator[Row]:
    report = report_of(results)
    listed = all_claims()
    for claim in listed["claims"]:
        yield judge(claim, report)
    outcomes = outcomes_of_tests(results)
    for claim in listed["tests"]:
        yield judge_test(claim, outcomes)
