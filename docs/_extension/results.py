"""The published results as pages of the site, under ``results``."""

from __future__ import annotations

import shutil
from pathlib import Path

from sphinx.application import Sphinx

PUBLISHED = "experiments/published/"
RECORDS = ("*.csv", "*.csv.xz", "*.jsonl.xz", "*.tgz", "*.txt", "*.verdicts.json")


def copy(app: Sphinx) -> None:
    """Copies the pages with their pictures and settings among the sources."""
    folder = Path(app.srcdir) / "results"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(app.srcdir.parent / PUBLISHED, folder, ignore=shutil.ignore_patterns(*RECORDS))


def relink(app: Sphinx, page: str, source: list[str]) -> None:
    """Turns links into the repository's folder of results, which GitHub follows, into links to the copies."""
    source[0] = source[0].replace(f"../{PUBLISHED}", "results/")
