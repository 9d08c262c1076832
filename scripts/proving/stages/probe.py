"""The driver: bench/driver_probe, whose report every other claim of the design goes back to."""

from __future__ import annotations

import json

from ..running import Stage, Word

SECTION_SECONDS = "40"  # one that hangs must leave time for the others
QUICK = ("--repeats", "2", "--copy-mib", "16", "--trim-mib", "1024", "--mapped-gib", "2")
MOST_MAPPINGS = "600000"
NO_BYTES = "backing:none"  # simulated memory of so many mappings is more than a process may map


def run(stage: Stage) -> None:
    report = stage.results.folder / "probe.json"
    program: Word = stage.machine.programs / "driver_probe"
    quick = QUICK if stage.machine.simulated else ()
    environment = stage.machine.for_program()
    stage.run(
        "sections",
        [program, "--output", report, "--section-seconds", SECTION_SECONDS, *quick],
        environment,
        stage.left() - 60,
    )
    take(stage)
    # Last and apart: it takes longest, and what it finds is least in doubt.
    limit = stage.results.folder / "mapping_limit.json"
    words = ("--sections", "mapping_limit", "--max-mappings", MOST_MAPPINGS, "--output", limit)
    if stage.machine.simulated:
        environment["SPILLWAY_SIM"] += f",{NO_BYTES}"
    stage.run("mapping_limit", [program, *words], environment, 120)
    if limit.exists():
        stage.found(mapping_limit=json.loads(limit.read_text()).get("mapping_limit", {}))


def take(stage: Stage) -> None:
    """Whatever ended the probe, its file is whole."""
    report = stage.results.folder / "probe.json"
    if report.exists():
        stage.found(**json.loads(report.read_text()))
