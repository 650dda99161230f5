"""What all benchmarks share: where they write, and what they leave there."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from experiments.running.results import machine, versions


def parser_of(name: str, description: str | None) -> argparse.ArgumentParser:
    """The command line of a benchmark, with ``--out``."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments benchmark {name}", description=description)
    parser.add_argument("--out", type=Path, default=Path("results"))
    return parser


def write(out: Path, name: str, text: str, **numbers: Any) -> None:
    """Write ``benchmark-NAME.json``, numbers with machine and versions, and the text beside it; print the text."""
    out.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine(), "versions": versions(), **numbers}
    (out / f"benchmark-{name}.json").write_text(json.dumps(report, indent=1))
    (out / f"benchmark-{name}.txt").write_text(text + "\n")
    print(f"{text}\n\nwritten: {out}/benchmark-{name}.json, .txt")
