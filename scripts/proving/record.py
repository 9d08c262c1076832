"""Puts what a run found into docs/hardware-proof.md, and its costs where the simulated device loads them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .claims import OPEN, Row, all_claims, judge, judge_test, outcomes_of_tests, report_of
from .layout import ROOT, UnusableError

DOCUMENT = ROOT / "docs" / "hardware-proof.md"
COSTS = ROOT / "bench" / "driver_probe" / "measured_costs.json"

NO_RUN = """**No hardware run yet.** Every row below is a reading of documentation or of other people's measurements
until this line names a device, a driver version and the date of a run."""


def columns(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def run_of(row: Row) -> str:
    return row.outcome + (f": {row.found}" if row.found and row.outcome != OPEN else "")


def claims_table(results: Mapping[str, Any]) -> str:
    rows = [["claim", "what rests on it", "field of the report", "holds where", "if not", "run"], ["---"] * 6]
    report = report_of(results)
    for claim in all_claims()["claims"]:
        fields = ", ".join(f"`{field}`" for field in claim["fields"])
        run = run_of(judge(claim, report))
        rows.append([claim["claim"], claim["rests"], fields, claim["holds"], claim["if_not"], run])
    return columns(rows)


def tests_table(results: Mapping[str, Any]) -> str:
    rows = [["claim", "what rests on it", "test", "run"], ["---"] * 4]
    outcomes = outcomes_of_tests(results)
    for claim in all_claims()["tests"]:
        rows.append([claim["claim"], claim["rests"], claim["test"], run_of(judge_test(claim, outcomes))])
    return columns(rows)


def headline(results: Mapping[str, Any]) -> str:
    if not results["stages"]:
        return NO_RUN
    probe, facts = report_of(results), results["stages"].get("facts", {"found": {}})["found"]
    driver = probe["driver"]["version"]
    versions = [f"CUDA {driver // 1000}.{driver % 1000 // 10}", f"driver {facts.get('driver_release') or 'unknown'}"]
    return (
        f"**Run on {probe['device']['name']}**, {', '.join(versions)}, on {results['started'][:10]},\n"
        f"of commit {results.get('commit', 'unknown')[:12]}. The column `run` is from it."
    )


def between(text: str, name: str, new: str) -> str:
    """What stands between <!-- NAME --> and <!-- end of NAME --> becomes `new`."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    found = pattern.search(text)
    if not found:
        raise UnusableError(f"the document has no place for {name}: <!-- {name} --> and <!-- end of {name} -->")
    return text[: found.end(1)] + new + "\n" + text[found.start(2) :]


def document(text: str, results: Mapping[str, Any]) -> str:
    """The document with its three parts made anew."""
    text = between(text, "run", headline(results))
    text = between(text, "claims", claims_table(results))
    return between(text, "tests", tests_table(results))


def costs_of(results: Mapping[str, Any]) -> dict[str, Any]:
    probe = report_of(results)
    return {
        "device": probe["device"]["name"],
        "driver_version": probe["driver"]["version"],
        "date": results["started"][:10],
        "costs_ns": probe["costs_ns"],
    }


def record(results: Mapping[str, Any], document_file: Path = DOCUMENT, costs_file: Path = COSTS) -> None:
    """Of no results: the document says again that there is no run. Errors: UnusableError, of a simulated run."""
    if results.get("simulated") or report_of(results).get("simulated"):
        raise UnusableError("these results are of the simulated device; what is recorded is of hardware")
    if results["stages"]:
        if look := [name for name in ("device", "costs_ns") if name not in report_of(results)]:
            raise UnusableError(f"these results lack the probe's {' and '.join(look)}: run the stage probe")
        costs_file.write_text(json.dumps(costs_of(results), indent=2) + "\n")
    document_file.write_text(document(document_file.read_text(), results))
