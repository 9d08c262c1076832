"""What was found of every case in every column, and the page that says so."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import complaints
import functions
from cases import COLUMNS, COMPLAINTS, FUNCTIONS, WORKS, Case, Finding, find, is_worse
from page.markdown import listed, page, table

torch: Any = importlib.import_module("torch")

Findings = dict[str, dict[str, Finding]]  # by case and column
SET = "full, set"  # beside the columns: full under the setting of the case
MOST_WORDS = 150

assert complaints and functions  # they fill the tables of cases


def functions_without_case() -> list[str]:
    return [name for name in functions.wanted() if name not in FUNCTIONS]


def judged_functions() -> list[Case]:
    return [FUNCTIONS[name] for name in functions.wanted()]


def every_case() -> list[Case]:
    return [*judged_functions(), *COMPLAINTS.values()]


def find_all(cases: Iterable[Case], columns: Iterable[str], rmm: str | None = None) -> Findings:
    return {case.name: {column: find(case, column, rmm) for column in columns} | _set(case) for case in cases}


def _set(case: Case) -> dict[str, Finding]:
    return {SET: find(case, "full", setting=case.setting)} if case.setting else {}


def worse(findings: Findings, column: str, than: str) -> list[str]:
    """The cases that work in the other column and not in this one."""
    return [name for name, row in findings.items() if is_worse(row[column], than=row[than])]


def cell(finding: Finding) -> str:
    if not finding.words:
        return finding.kind
    words = finding.words.replace("|", "/").split(". If you need it")[0]
    return f"**{finding.kind}**: {words if len(words) <= MOST_WORDS else words[:MOST_WORDS] + ' ...'}"


def rows(findings: Findings, cases: Iterable[Case], name: Callable[[Case], list[str]]) -> list[list[str]]:
    return [[*name(case), *(cell(findings[case.name][column]) for column in COLUMNS)] for case in cases]


def complaint_rows(findings: Findings) -> list[list[str]]:
    found = rows(findings, COMPLAINTS.values(), lambda case: [case.name, case.asks])
    for row, case in zip(found, COMPLAINTS.values(), strict=True):
        if case.setting and findings[case.name][SET].kind == WORKS:
            row[-1] += f"; works with `{case.setting}`"
    return found


def whole_page(rmm: str, rmm_release: str) -> str:
    findings: Findings = {}
    cases = every_case()
    for count, case in enumerate(cases, 1):
        print(f"[{count}/{len(cases)}] {case.name}", file=sys.stderr, flush=True)
        findings.update(find_all([case], COLUMNS, rmm))
    heads = " | ".join(COLUMNS)
    return page(
        "# Conformance with PyTorch",
        "    .venv/bin/python tests/python/conformance/print_conformance.py",
        "prints this page. Each cell is what a small program found when it ran on the **simulated** device, in a "
        f"process of its own, with PyTorch {torch.__version__}: *works*; *refuses*, with the first line of the error; "
        "*wrong*, and what was seen instead; or *not applicable*, and why. The programs are beside the command.",
        "**native** is PyTorch's own allocator, **plain** and **full** are the two integrations of Spillway "
        f"(pytorch.md). **RMM** is `rmm_torch_allocator` of RMM {rmm_release} with memory from its "
        "`CallbackMemoryResource`: RMM's own pools could not be run, because the CUDA runtime inside of them wants "
        "tables of the driver that NVIDIA does not document (`cuGetExportTable`). What the column finds is how RMM "
        "meets PyTorch, not how it manages memory; where its pool could change a finding, this page does not show it.",
        f"Of {len(findings)} cases, those that work on native and not on full: "
        f"{listed(worse(findings, 'full', 'native'))}. Not on plain: {len(worse(findings, 'plain', 'native'))}. "
        f"Those that work on full and not on native: {len(worse(findings, 'native', 'full'))}.",
        "## Functions",
        "All of `torch.cuda.memory.__all__`, those with an underscore that PyTorch documents, and the functions about "
        "memory of `torch.accelerator`, as this PyTorch lists them; one without a program fails the command.",
        table(f"function | {heads}", rows(findings, judged_functions(), lambda case: [f"`{case.name}`"])),
        "## Complaints",
        "What users have complained of, as a program that has the trouble; *works* means that it is gone. *Works with* "
        "names a setting (configuration.md) that is off by default, because it costs those who have not the trouble.",
        "`cudaIpcGetMemHandle` is for memory of `cudaMalloc` alone: the driver refuses mapped memory, that of "
        "PyTorch's expandable segments too, and nobody knows which tensors a program will show so. Instead of all "
        "memory (`backend:malloc`) it can be that of a `MemPool` whose allocator calls `cudaMalloc` (pytorch.md).",
        table(f"complaint | wanted | {heads}", complaint_rows(findings)),
    )
