"""What the site has, in the order of its menu. A page of docs/ that is in no chapter is refused."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"

# Pages by their names in docs/, without .md. The last chapter has all that is in docs/decisions besides.
CHAPTERS: dict[str, list[str]] = {
    "Begin": ["install", "out-of-memory", "growing-memory", "numbers", "troubleshooting", "gallery"],
    "Guides": [
        "pytorch",
        "dryrun",
        "dryrun-ranks",
        "trace-model",
        "estimate",
        "estimate-serving",
        "estimate-images",
        "report",
        "live",
        "trace",
        "spilling",
        "integrations",
        "preload",
        "embedding",
        "devices",
        "debugging",
    ],
    "Reference": [
        "command",
        "commands",
        "configuration",
        "python",
        "c",
        "dumps",
        "schema/index",
        "spilling-reference",
        "glossary",
    ],
    "What was measured": [
        "benchmarks",
        "real-programs",
        "hardware-proof",
        "estimator-accuracy",
        "estimator-calibration",
        "estimator-published",
        "estimator-side-by-side",
        "estimator-transformers",
        "dryrun-accuracy",
        "spilling-measurements",
        "pytorch-conformance",
    ],
    "Design": ["life-of-an-allocation", "contributing", "decisions/index"],
}
HOME = "index"
# These are made for the site alone, of the command's own help, docstrings and headers.
GENERATED = {"commands", "python", "c"}
# Pages that lie outside of docs/.
ELSEWHERE = {"CONTRIBUTING.md": "contributing.md"}


def pages() -> list[Path]:
    """Every page of the project that a reader may open as a file, README with them."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "examples/traces/README.md",
        *sorted(DOCS.rglob("*.md")),
    ]
