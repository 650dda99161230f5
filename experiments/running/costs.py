"""What experiments cost, as it was measured: processor seconds a seed at each scale, and times in words."""

from __future__ import annotations

import functools
import json
from importlib import resources

from experiments.harness.experiment import Experiment


@functools.cache
def _measured() -> dict[str, dict[str, float]]:
    file = resources.files("experiments") / "published" / "costs.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def seconds_a_seed(name: str, scale: str) -> float | None:
    """Processor seconds of one seed, as measured when the committed results were made; None where they were not."""
    return _measured().get(name, {}).get(scale)


def in_words(seconds: float) -> str:
    """A time to be read: ``8 s``, ``12 min``, ``3.4 h``, ``2.1 days``."""
    for limit, unit, name in ((100, 1, "s"), (6000, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            count = seconds / unit
            return f"{count:.2g} {name}" if count < 10 else f"{count:.0f} {name}"
    return f"{seconds / 86400:.2g} days"


def of(experiment: Experiment, scale: str) -> str:
    """Processor time of a run with the default seeds, in words; empty where nobody knows."""
    measured = seconds_a_seed(experiment.id, scale)
    if measured is None and "reduced" not in experiment.scales and scale in ("reduced", "paper"):
        measured = seconds_a_seed(experiment.id, "paper" if scale == "reduced" else "reduced")
    if measured is None:
        return experiment.cost.get(scale, "")
    return in_words(measured * experiment.num_seeds(scale))
