"""The results' own pages, which need no more than their pictures, as part of the site under ``results``."""

from __future__ import annotations

import shutil
from pathlib import Path

from sphinx.application import Sphinx

PUBLISHED = Path(__file__).parents[2] / "experiments" / "published"


def copy(app: Sphinx, exception: Exception | None) -> None:
    """Copies the pages and the pictures that they show."""
    if exception is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "results"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in [*PUBLISHED.glob("*.html"), *PUBLISHED.glob("*.png")]:
        shutil.copyfile(path, folder / path.name)
