"""Keeps what a run found in docs/hardware, and makes docs/hardware-proof.md anew from all runs that are kept there."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .claims import OPEN, Row, all_claims, judge, judge_test, outcomes_of_tests, report_of
from .layout import ROOT, UnusableError
from .results import read

DOCUMENT = ROOT / "docs" / "hardware-proof.md"
RUNS = ROOT / "docs" / "hardware"
MOST_COLUMNS = 128  # of a line of documentation
COSTS = ROOT / "bench" / "driver_probe" / "measured_costs.json"

NO_RUN = """**No hardware run yet.** Every row below is a reading of documentation or of other people's measurements
until this line names a device, a driver version and the date of a run."""
# These say of the machine, and of how the stages ran, what no claim asks for.
LEFT_OUT = ("files", "parcel", "missing_libraries", "system", "python", "libc", "nvcc")

Run = Mapping[str, Any]


def columns(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def run_of(row: Row) -> str:
    return row.outcome + (f": {row.found}" if row.found and row.outcome != OPEN else "")


def device_of(run: Run) -> str:
    name: str = report_of(run).get("device", {}).get("name", "unknown device")
    return name


def heads(runs: Sequence[Run]) -> list[str]:
    return [device_of(run) for run in runs] or ["run"]


def claims_table(runs: Sequence[Run]) -> str:
    rows = [["claim", "what rests on it", "field of the report", "holds where", "if not", *heads(runs)]]
    rows.append(["---"] * len(rows[0]))
    reports = [report_of(run) for run in runs] or [{}]
    for claim in all_claims()["claims"]:
        fields = ", ".join(f"`{field}`" for field in claim["fields"])
        found = [run_of(judge(claim, report)) for report in reports]
        rows.append([claim["claim"], claim["rests"], fields, claim["holds"], claim["if_not"], *found])
    return columns(rows)


def tests_table(runs: Sequence[Run]) -> str:
    rows = [["claim", "what rests on it", "test", *heads(runs)]]
    rows.append(["---"] * len(rows[0]))
    outcomes = [outcomes_of_tests(run) for run in runs] or [{}]
    for claim in all_claims()["tests"]:
        rows.append(
            [claim["claim"], claim["rests"], claim["test"], *(run_of(judge_test(claim, of)) for of in outcomes)]
        )
    return columns(rows)


def headline(runs: Sequence[Run]) -> str:
    return "\n".join(map(headline_of, runs)) or NO_RUN


def headline_of(run: Run) -> str:
    probe, facts = report_of(run), run["stages"].get("facts", {"found": {}})["found"]
    driver = probe["driver"]["version"]
    release = facts.get("driver_release")
    versions = f"CUDA {driver // 1000}.{driver % 1000 // 10}" + (f", driver {release}" if release else "")
    note = f" {run['note']}" if "note" in run else ""
    commit = run.get("commit", "unknown")[:12]
    line = f"- **{device_of(run)}**, {versions}, on {run['started'][:10]}, of commit {commit}.{note}"
    return textwrap.fill(line, MOST_COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def between(text: str, name: str, new: str) -> str:
    """What stands between <!-- NAME --> and <!-- end of NAME --> becomes `new`."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    found = pattern.search(text)
    if not found:
        raise UnusableError(f"the document has no place for {name}: <!-- {name} --> and <!-- end of {name} -->")
    return text[: found.end(1)] + new + "\n" + text[found.start(2) :]


def document(text: str, runs: Sequence[Run]) -> str:
    """The document with its three parts made anew."""
    text = between(text, "run", headline(runs))
    text = between(text, "claims", claims_table(runs))
    return between(text, "tests", tests_table(runs))


def costs_of(run: Run) -> dict[str, Any]:
    probe = report_of(run)
    return {
        "device": probe["device"]["name"],
        "driver_version": probe["driver"]["version"],
        "date": run["started"][:10],
        "costs_ns": probe["costs_ns"],
    }


def kept_of(results: Run) -> dict[str, Any]:
    """What was found, without the machine's own and without each step."""
    stages = {
        name: {"found": {key: value for key, value in stage["found"].items() if key not in LEFT_OUT}}
        for name, stage in results["stages"].items()
    }
    first = {key: results[key] for key in ("started", "commit", "note") if key in results}
    return {"schema_version": 1, "simulated": False, **first, "stages": stages}


def check(results: Run) -> None:
    """Errors: UnusableError, of what is no run, of a simulated run and of one without the probe."""
    stages = results["stages"].values()
    if not all(isinstance(stage, dict) and isinstance(stage.get("found"), dict) for stage in stages):
        raise UnusableError("these results have a stage without `found`")
    if not isinstance(results.get("started"), str):
        raise UnusableError("these results do not say when they `started`")
    if results.get("simulated") or report_of(results).get("simulated"):
        raise UnusableError("these results are of the simulated device; what is recorded is of hardware")
    if look := [name for name in ("device", "costs_ns") if name not in report_of(results)]:
        raise UnusableError(f"these results lack the probe's {' and '.join(look)}: run the stage probe")


def record(
    results: Run | None, document_file: Path = DOCUMENT, costs_file: Path = COSTS, runs_folder: Path = RUNS
) -> None:
    """Without results, only the page is made anew. Errors: UnusableError; nothing is written then."""
    runs = {file.name: read(file) for file in runs_folder.glob("*.json")}
    name = ""
    if results is not None:
        check(results)
        device = re.sub(r"\W+", "-", device_of(results)).strip("-").lower()
        name = f"{results['started'][:10]}-{device}.json"
        runs[name] = kept_of(results)
    in_order = [runs[each] for each in sorted(runs)]
    text = document(document_file.read_text(), in_order)
    if name:
        runs_folder.mkdir(parents=True, exist_ok=True)
        (runs_folder / name).write_text(json.dumps(runs[name], indent=1) + "\n")
        costs_file.write_text(json.dumps(costs_of(in_order[0]), indent=2) + "\n")
    document_file.write_text(text)
